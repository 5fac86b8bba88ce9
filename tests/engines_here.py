"""An engine for sweeps that does every job at once, in this process."""

from purifl.sweeps.work import work


class Here:
    """Takes the place of the local workers; ``jobs`` are those it was given."""

    def __init__(self, *_):
        self.capacity, self.jobs, self._done = 2, [], []

    def submit(self, key, job):
        self.jobs.append(job)
        self._done.append((key, self.do(job)))

    def do(self, job):
        return work(job)

    def wait(self, _):
        done, self._done = self._done, []
        return done

    def close(self):
        pass
