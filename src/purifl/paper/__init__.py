"""The paper's tables and figures, each as data (``data/*.yaml``), and what makes them anew."""
