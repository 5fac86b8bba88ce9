import copy
import itertools
import math
import random
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from purifl.errors import ConfigError
from purifl.models import Build, Imported, check_model, models, resolve_model
from purifl.models.swin import WINDOW, WindowAttention

NAMES = ["cnn", "mlp", "resnet18", "swin", "vit"]
SHAPES = [(1, 8, 8), (1, 28, 28), (3, 32, 32)]


@pytest.fixture(autouse=True)
def _single_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def build(spec, shape, classes=10, seed=0):
    torch.manual_seed(seed)
    return resolve_model(spec).build(shape, classes)


def test_the_registry_holds_the_built_in_models():
    assert list(models) == NAMES
    for entry in models.describe():
        assert entry["summary"]
        assert entry["reference"]


def test_cnn_has_the_papers_parameter_count():
    assert sum(p.numel() for p in build("cnn", (1, 28, 28)).parameters()) == 28_938


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", NAMES)
def test_scores_have_one_column_per_class_and_every_parameter_gets_a_gradient(name, shape):
    model = build(name, shape, classes=7)
    check_model(model)
    scores = model(torch.randn(3, *shape))
    assert scores.shape == (3, 7)
    F.cross_entropy(scores, torch.tensor([0, 3, 6])).backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
        assert parameter.grad.any(), parameter_name


@pytest.mark.parametrize("shape", [(2, 12, 20), (1, 10, 14), (1, 18, 22)])
@pytest.mark.parametrize("name", NAMES)
def test_oblong_and_awkward_sizes_work(name, shape):
    spec = {"name": "vit", "patch": 2} if name == "vit" else name
    assert build(spec, shape)(torch.randn(2, *shape)).shape == (2, 10)


@pytest.mark.parametrize("name", NAMES)
def test_models_are_deterministic_and_each_sample_is_on_its_own(name):
    model, again = build(name, (1, 8, 8)), build(name, (1, 8, 8))
    x = torch.randn(4, 1, 8, 8)
    assert torch.equal(model(x), again(x))
    assert torch.equal(model(x), model.eval()(x))
    torch.testing.assert_close(model(x)[2:3], model(x[2:3]), atol=1e-5, rtol=0)
    assert list(model.state_dict()) == [key for key, _ in model.named_parameters()]


@pytest.mark.parametrize("name", NAMES)
def test_parameters_survive_a_trip_through_one_vector(name):
    model, other = build(name, (1, 8, 8), seed=0), build(name, (1, 8, 8), seed=1)
    vector_to_parameters(parameters_to_vector(model.parameters()), other.parameters())
    x = torch.randn(2, 1, 8, 8)
    assert torch.equal(model(x), other(x))


@pytest.mark.parametrize(
    ("spec", "step"),
    [
        ("cnn", 3e-3),
        ("mlp", 3e-3),
        ("resnet18", 3e-4),
        ("swin", 1e-3),
        ({"name": "vit", "dim": 32, "depth": 2}, 3e-3),
    ],
)
def test_each_model_learns_a_small_task(spec, step):
    model = build(spec, (1, 8, 8), classes=4)
    y = torch.arange(64) % 4
    patterns = torch.randn(4, 1, 8, 8)
    x = patterns[y] + 0.5 * torch.randn(64, 1, 8, 8)
    optimiser = torch.optim.Adam(model.parameters(), lr=step)
    before = F.cross_entropy(model(x), y).item()
    for _ in range(12 if spec == "resnet18" else 25):
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimiser.step()
    assert F.cross_entropy(model(x), y).item() < before / 2


def stacked(clients):
    return {
        key: torch.stack([dict(client.named_parameters())[key].detach() for client in clients])
        for key, _ in clients[0].named_parameters()
    }


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28)])
@pytest.mark.parametrize("name", NAMES)
def test_vmap_over_clients_equals_a_loop(name, shape):
    clients = [build(name, shape, seed=k) for k in range(3)]
    x = torch.randn(3, 2, *shape)
    together = vmap(lambda params, batch: functional_call(clients[0], params, (batch,)))(stacked(clients), x)
    for k, client in enumerate(clients):
        torch.testing.assert_close(together[k], client(x[k]), atol=1e-5, rtol=0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", NAMES)
def test_vmapped_gradients_equal_a_loop(name):
    # In double precision: in single, rounding alone can move an activation across the kink of a ReLU.
    clients = [build(name, (1, 8, 8), seed=k).double() for k in range(3)]
    x, y = torch.randn(3, 2, 1, 8, 8, dtype=torch.float64), torch.arange(6).reshape(3, 2)

    def loss(params, batch, labels):
        return F.cross_entropy(functional_call(clients[0], params, (batch,)), labels)

    together = vmap(grad(loss))(stacked(clients), x, y)
    for k, client in enumerate(clients):
        F.cross_entropy(client(x[k]), y[k]).backward()
        for key, parameter in client.named_parameters():
            torch.testing.assert_close(together[key][k], parameter.grad, atol=1e-10, rtol=0)


def test_vit_can_be_differentiated_under_vmap_in_bf16():
    clients = [build({"name": "vit", "dim": 32, "depth": 2}, (1, 8, 8), seed=k) for k in range(3)]
    x, y = torch.randn(3, 4, 1, 8, 8), torch.arange(12).reshape(3, 4) % 10

    def loss(params, batch, labels):
        with torch.autocast("cpu", torch.bfloat16):
            outputs = functional_call(clients[0], params, (batch,))
        return F.cross_entropy(outputs.float(), labels)

    together = vmap(grad(loss))(stacked(clients), x, y)
    for k, client in enumerate(clients):
        F.cross_entropy(client(x[k]), y[k]).backward()
        exact = torch.cat([parameter.grad.flatten() for parameter in client.parameters()])
        found = torch.cat([together[key][k].flatten() for key, _ in client.named_parameters()])
        assert torch.linalg.vector_norm(found - exact) < 0.05 * torch.linalg.vector_norm(exact)


def slow_window_attention(layer, x):
    """Each token attends to the real tokens of its window, windows being cut from the unrolled plane."""
    _, height, width, dim = x.shape
    head = dim // layer.heads
    q, k, v = layer.qkv(x[0]).split(dim, dim=-1)
    cells = list(itertools.product(range(height), range(width)))
    result = torch.empty(height, width, dim, dtype=x.dtype)
    for r, c in cells:
        window = [(a, b) for a, b in cells if cell_of(layer, a, b) == cell_of(layer, r, c)]
        mixed = []
        for h in range(layer.heads):
            part = slice(h * head, (h + 1) * head)
            scores = torch.stack(
                [
                    q[r, c, part] @ k[a, b, part] / math.sqrt(head)
                    + layer.bias[h].reshape(2 * WINDOW - 1, -1)[r - a + WINDOW - 1, c - b + WINDOW - 1]
                    for a, b in window
                ]
            )
            values = torch.stack([v[a, b, part] for a, b in window])
            mixed.append(scores.softmax(0) @ values)
        result[r, c] = layer.out(torch.cat(mixed))
    return result[None]


def cell_of(layer, row, column):
    down, right = layer.shift
    return (row - down) // WINDOW, (column - right) // WINDOW


@pytest.mark.parametrize("shift", [0, 2])
@pytest.mark.parametrize("size", [(8, 8), (7, 7), (4, 4), (6, 9), (3, 10)])
def test_window_attention_matches_a_slow_computation(size, shift):
    torch.manual_seed(0)
    layer = WindowAttention(8, 2, size, shift).double()
    nn.init.normal_(layer.bias)
    x = torch.randn(1, *size, 8, dtype=torch.float64)
    torch.testing.assert_close(layer(x), slow_window_attention(layer, x), atol=1e-12, rtol=0)


def test_shifted_windows_do_not_leak_across_the_edges():
    torch.manual_seed(0)
    layer = WindowAttention(8, 2, (8, 8), shift=2)
    x = torch.randn(1, 8, 8, 8, requires_grad=True)
    layer(x)[0, 0, 0].sum().backward()
    reached = x.grad[0].abs().sum(-1) > 0
    assert reached[:2, :2].all()
    assert reached.sum() == 4


def test_every_window_but_the_first_block_is_shifted_where_there_is_room():
    layers = [m for m in build("swin", (3, 32, 32)).modules() if isinstance(m, WindowAttention)]
    assert [layer.shift for layer in layers] == [(0, 0), (2, 2), (0, 0), (2, 2)]
    layers = [m for m in build("swin", (1, 8, 8)).modules() if isinstance(m, WindowAttention)]
    assert [layer.shift for layer in layers] == [(0, 0), (2, 2), (0, 0), (0, 0)]


@pytest.mark.parametrize("name", ["cnn", "resnet18", "swin", "vit"])
def test_image_models_refuse_feature_vectors(name):
    with pytest.raises(ConfigError, match=r"needs images.*feature vectors of length 5000; use mlp") as caught:
        build(name, (5000,))
    assert (caught.value.field, caught.value.value) == ("model", name)
    assert build("mlp", (5000,))(torch.zeros(2, 5000)).shape == (2, 10)


@pytest.mark.parametrize(
    ("spec", "shape", "allowed"),
    [
        ("cnn", (1, 3, 28), "at least 4"),
        ("resnet18", (3, 7, 7), "at least 8"),
        ("swin", (1, 6, 6), "at least 8"),
        ("swin", (1, 17, 17), "multiples of 2"),
        ("vit", (1, 30, 30), "at least 4 and multiples of 4"),
        ({"name": "vit", "patch": 5}, (1, 28, 28), "multiples of 5"),
        ("cnn", (28, 28), "inputs of shape"),
    ],
)
def test_image_models_say_which_sizes_they_take(spec, shape, allowed):
    with pytest.raises(ConfigError, match=allowed):
        build(spec, shape)


def test_vit_heads_have_to_divide_its_width():
    with pytest.raises(ConfigError, match=r"model\.heads: 3 is not usable; it has to divide dim = 128"):
        resolve_model({"name": "vit", "heads": 3})


@pytest.mark.parametrize("spec", ["cnn", {"name": "mlp", "hidden": 9}, {"name": "vit", "patch": 2, "dim": 32}])
def test_built_in_models_round_trip(spec):
    model = resolve_model(spec)
    assert resolve_model(model.model_dump()) == model
    assert resolve_model(model) is model


def test_an_unknown_name_is_corrected():
    with pytest.raises(ConfigError, match="did you mean 'resnet18'"):
        resolve_model("resnet-18")


class WithBatchNorm(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), norm)


@pytest.mark.parametrize(
    "norm",
    [nn.BatchNorm2d(4), nn.SyncBatchNorm(4), nn.LazyBatchNorm2d(), nn.InstanceNorm2d(4, track_running_stats=True)],
)
def test_running_statistics_are_refused_by_name(norm):
    with pytest.raises(ConfigError, match=r"'body\.1'.*running statistics.*GroupNorm or LayerNorm") as caught:
        check_model(WithBatchNorm(norm))
    assert (caught.value.field, caught.value.value) == ("model", "WithBatchNorm")


def test_a_bare_batch_norm_is_refused_too():
    with pytest.raises(ConfigError, match="it keeps running statistics"):
        check_model(nn.BatchNorm1d(3))


@pytest.mark.parametrize(
    "norm", [nn.GroupNorm(2, 4), nn.InstanceNorm2d(4), nn.BatchNorm2d(4, track_running_stats=False)]
)
def test_other_normalisation_and_constant_buffers_are_fine(norm):
    model = WithBatchNorm(norm)
    model.register_buffer("grid", torch.arange(3))
    check_model(model)


def test_models_without_anything_to_train_are_refused():
    frozen = copy.deepcopy(nn.Linear(2, 2)).requires_grad_(False)
    for model in (nn.Flatten(), frozen):
        with pytest.raises(ConfigError, match="at least one trainable parameter"):
            check_model(model)


def test_lazy_parameters_are_refused():
    with pytest.raises(ConfigError, match=r"'1\.weight' is lazy"):
        check_model(nn.Sequential(nn.Flatten(), nn.LazyLinear(3)))


@pytest.fixture
def own_code(tmp_path, monkeypatch):
    (tmp_path / "purifl_test_own.py").write_text(
        "import math\n"
        "from torch import nn\n"
        "def tiny(shape, classes, width=2):\n"
        "    n = math.prod(shape)\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(n, width), nn.Linear(width, classes))\n"
        "def wrong(shape, classes):\n"
        "    return 'no model'\n"
        "constant = 3\n"
        "def failing(shape, classes):\n"
        "    raise KeyError('hidden')\n"
        "def leaving(shape, classes):\n"
        "    raise SystemExit(3)\n"
        "def stopped(shape, classes):\n"
        "    raise KeyboardInterrupt\n"
        "def picky(shape, classes):\n"
        "    from purifl.models import resolve_model\n"
        "    return resolve_model('cnn').build(shape, classes)\n"
    )
    (tmp_path / "purifl_test_broken.py").write_text("import purifl_test_not_there\n")
    (tmp_path / "purifl_test_syntax.py").write_text("x = 1\ny = = 2\n")
    (tmp_path / "purifl_test_raising.py").write_text("\nraise RuntimeError('no weights\\n  here')\n")
    (tmp_path / "purifl_test_leaving.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "purifl_test_stopped.py").write_text("raise KeyboardInterrupt\n")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("purifl_test_own", None)


@pytest.mark.usefixtures("own_code")
def test_a_model_can_be_imported_from_the_current_directory():
    before = list(sys.path)
    model = resolve_model("purifl_test_own:tiny")
    assert isinstance(model, Imported)
    assert model == Imported(factory="purifl_test_own:tiny")
    assert model.build((1, 3, 3), 5)(torch.zeros(2, 1, 3, 3)).shape == (2, 5)
    assert sys.path == before


@pytest.mark.usefixtures("own_code")
def test_parameters_of_an_imported_model_reach_the_factory_and_round_trip():
    spec = {"name": "purifl_test_own:tiny", "width": 6}
    model = resolve_model(spec)
    assert model.build((4,), 3)[1].out_features == 6
    assert model.name == "purifl_test_own:tiny"
    assert model.model_dump() == spec
    assert resolve_model(model.model_dump()) == model
    assert Imported(factory="purifl_test_own:tiny").model_dump(mode="json") == {"name": "purifl_test_own:tiny"}


@pytest.mark.usefixtures("own_code")
@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("purifl_test_nowhere:tiny", "purifl_test_nowhere"),
        ("purifl_test_own:huge", "huge"),
        ("purifl_test_broken:tiny", "purifl_test_not_there"),
        (":tiny", "package.module:factory"),
        ("purifl_test_own:", "package.module:factory"),
        ("purifl_test_own:constant", "callable"),
        ("purifl_test_own:wrong", "not a str"),
        ("purifl_test_syntax:tiny", r"SyntaxError: invalid syntax \(purifl_test_syntax\.py, line 2\)"),
        ("purifl_test_raising:tiny", r"RuntimeError: no weights here \(purifl_test_raising\.py, line 2\)"),
        ("purifl_test_leaving:tiny", "SystemExit: 3"),
        (
            "purifl_test_own:failing",
            r"of shape \(4,\) and 3 classes: KeyError: 'hidden' \(purifl_test_own\.py, line 10\)",
        ),
        ("purifl_test_own:leaving", "SystemExit: 3"),
        (".purifl_test_own:tiny", "relative import"),
        ("builtins:min", "no signature"),
        ({"name": "purifl_test_own:tiny", "depth": 2}, "depth"),
    ],
)
def test_import_paths_that_do_not_work_say_why(spec, reason):
    with pytest.raises(ConfigError, match=reason) as caught:
        resolve_model(spec).build((4,), 3)
    assert (caught.value.field, caught.value.value) == ("model", spec["name"] if isinstance(spec, dict) else spec)


@pytest.mark.usefixtures("own_code")
@pytest.mark.parametrize("path", ["purifl_test_own:stopped", "purifl_test_stopped:tiny"])
def test_an_interruption_is_not_the_models_fault(path):
    with pytest.raises(KeyboardInterrupt):
        resolve_model(path).build((4,), 3)


@pytest.mark.usefixtures("own_code")
def test_what_a_factory_refuses_in_our_words_stays_as_it_is():
    with pytest.raises(ConfigError, match="model: 'cnn' is not usable; it needs images"):
        resolve_model("purifl_test_own:picky").build((4,), 3)


class Answering(nn.Module):
    """Gives whatever ``answer`` makes of a batch."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def forward(self, x):
        return self.answer(x)


def tried(model, like, classes=3, spec="pkg.mod:make"):
    Build(resolve_model(spec), tuple(like.shape[1:]), classes).check(model, like)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (nn.Linear(5, 3), r"a batch of shape \(2, 4\) and type torch\.float32: RuntimeError: .*2x4 and 5x3"),
        (nn.Linear(4, 3).double(), "RuntimeError: .*dtype"),
        (nn.Linear(4, 7), r"of shape \(2, 3\), a score for each of the 3 classes, not \(2, 7\)"),
        (nn.Sequential(nn.Linear(4, 3), nn.Flatten(0)), r"not \(6,\)"),
        (Answering(lambda x: (x, x)), "not a tuple"),
    ],
)
def test_a_users_model_that_does_not_fit_the_data_is_refused(model, reason):
    with pytest.raises(ConfigError, match=reason) as caught:
        tried(model, torch.zeros(1, 4))
    assert (caught.value.field, caught.value.value) == ("model", "pkg.mod:make")


def test_a_users_model_is_tried_with_the_type_of_the_data():
    words = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(20, 3))
    tried(words, torch.ones(1, 5, dtype=torch.int64))
    with pytest.raises(ConfigError, match=r"shape \(2, 5\) and type torch\.float32"):
        tried(words, torch.ones(1, 5))


def test_an_interruption_of_the_trial_is_not_the_models_fault():
    def interrupt(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tried(Answering(interrupt), torch.zeros(1, 4))


def test_built_in_models_are_not_tried():
    tried(Answering(lambda _: pytest.fail("tried")), torch.zeros(1, 4), spec="mlp")


class Counting(nn.Module):
    """Keeps count of its calls in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, x):
        self.calls += 1
        return x


@pytest.mark.parametrize("training", [True, False])
def test_a_trial_leaves_the_model_and_all_random_states_as_they_were(training):
    turning = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3))
    model = nn.Sequential(Counting(), nn.Dropout(), turning).train(training)
    tensors = {name: t.clone() for name, t in (*model.named_parameters(), *model.named_buffers())}
    torch_state, numpy_state, python_state = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    tried(model, torch.zeros(1, 4))
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)
    assert random.getstate() == python_state
    assert all(module.training == training for module in model.modules())
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        assert torch.equal(tensor, tensors[name]), name
        assert tensor.grad is None
