import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from purifl import Experiment
from purifl.attacks import attacks
from purifl.data import datasets
from purifl.data.partitions import partitions
from purifl.defenses import defenses
from purifl.detection import detectors
from purifl.errors import ConfigError
from purifl.experiment import assignment, read_settings, set_path
from purifl.models import models
from purifl.topology import topologies


def refusal(settings):
    with pytest.raises(ConfigError) as caught:
        Experiment.parse(settings)
    return str(caught.value)


def through_json(experiment):
    return Experiment.parse(json.loads(json.dumps(experiment.to_dict())))


def through_yaml(experiment):
    return Experiment.parse(yaml.safe_load(yaml.safe_dump(experiment.to_dict())))


def named(registry, **parameters):
    """Any entry of the registry, by name or with parameters it may have."""

    def spec(name):
        own = {k: v for k, v in parameters.items() if k in registry[name].model_fields}
        return st.one_of(st.just(name), st.fixed_dictionaries({"name": st.just(name)}, optional=own))

    return st.sampled_from([name for name in registry if name != "file"]).flatmap(spec)


shares = st.floats(0, 1, exclude_min=True, exclude_max=True)
positive = st.floats(1e-6, 1e6)
experiments = st.fixed_dictionaries(
    {},
    optional={
        "dataset": named(datasets),
        "partition": named(partitions, alpha=positive),
        "clients": st.integers(2, 200),
        "topology": named(topologies, degree=st.integers(2, 9), probability=shares),
        "mixing": st.sampled_from(["uniform", "metropolis", None]),
        "model": named(models, hidden=st.integers(1, 99)) | st.just({"name": "pkg.mod:make", "depth": 3, "bias": True}),
        "training": st.fixed_dictionaries(
            {},
            optional={
                "gradient": st.sampled_from(["epoch-sum", "epoch-mean", "steps", "batch"]),
                "local_steps": st.integers(1, 99),
                "batch_size": st.none() | st.integers(1, 999),
                "step_size": st.none() | positive,
                "local_step_size": st.none() | positive,
                "initial": st.sampled_from(["same", "different"]),
            },
        ),
        "attack": named(
            attacks,
            malicious_ratio=shares,
            malicious_level=shares,
            malicious_clients=st.none() | st.lists(st.integers(0, 99)),
            target=st.integers(0, 9),
        ),
        "defense": named(defenses, threshold=shares),
        "detector": st.none() | named(detectors, temperature=positive, sharpness=positive),
        "rounds": st.integers(1, 10**6),
        "eval_every": st.none() | st.integers(1, 100),
        "seed": st.integers(0, 2**32 - 1),
        "device": st.sampled_from(["cpu", "cuda", "cuda:3"]),
    },
)


@given(experiments)
def test_json_and_yaml_give_back_the_same_experiment(settings):
    experiment = Experiment.parse(settings)
    for again in (through_json(experiment), through_yaml(experiment), Experiment.parse(experiment.model_dump())):
        assert again == experiment
        assert again.digest() == experiment.digest()
    assert Experiment.model_validate_json(experiment.model_dump_json()) == experiment


def test_a_graph_file_survives_the_round_trip(tmp_path):
    experiment = Experiment(topology={"name": "file", "path": tmp_path / "g.graphml"})
    assert through_json(experiment) == through_yaml(experiment) == experiment


@pytest.mark.parametrize(
    "change",
    [{"seed": 1}, {"rounds": 49}, {"attack": "backdoor-1"}, {"defense": {"threshold": 0.2}}, {"mixing": "uniform"}],
)
def test_another_experiment_has_another_digest(change):
    assert Experiment().digest() == Experiment().digest() != Experiment(**change).digest()


def test_components_and_plain_data_make_the_same_experiment():
    given = Experiment(attack=attacks["backdoor-9"](target=3), defense=defenses["lower"]())
    assert given == Experiment(attack={"name": "backdoor-9", "target": 3}, defense="lower")
    with pytest.raises(ValidationError):
        Experiment(attack=defenses["lower"]())


def test_an_experiment_is_frozen():
    experiment = Experiment()
    with pytest.raises(ValidationError, match="frozen"):
        experiment.rounds = 3
    with pytest.raises(ValidationError, match="frozen"):
        experiment.training.batch_size = 3
    with pytest.raises(ValidationError, match="frozen"):
        experiment.defense.threshold = 0.3


@pytest.mark.parametrize("name", list(defenses))
def test_detector_and_mixing_are_the_defences_own_unless_given(name):
    experiment = Experiment(defense=name)
    assert experiment.detector.name == defenses[name].detector
    assert experiment.mixing == defenses[name].mixing
    other = Experiment(defense=name, detector="similarity", mixing="uniform")
    assert (other.detector.name, other.mixing) == ("similarity", "uniform")


def test_the_papers_choices_are_those_of_the_paper():
    paper, ours = Experiment(defense="gpd-paper"), Experiment()
    assert (paper.detector.name, paper.mixing) == ("consistency", "uniform")
    assert (ours.defense.name, ours.detector.name, ours.mixing) == ("gpd", "persistence", "metropolis")


@pytest.mark.parametrize("name", list(datasets))
def test_batch_and_step_size_are_the_data_sets_unless_given(name):
    training = Experiment(dataset=name).training
    assert (training.batch_size, training.step_size) == (datasets[name].batch_size, datasets[name].step_size)
    training = Experiment(dataset=name, training={"batch_size": 7, "step_size": 0.5}).training
    assert (training.batch_size, training.step_size) == (7, 0.5)


@pytest.mark.parametrize("name", list(datasets))
def test_large_data_sets_are_evaluated_less_often_unless_told(name):
    assert Experiment(dataset=name).eval_every == (1 if name == "digits" else 5)
    assert Experiment(dataset=name, eval_every=3).eval_every == 3


def test_the_model_is_the_data_sets_unless_given():
    assert Experiment(dataset="20newsgroups").model.name == "mlp"
    assert Experiment(dataset={"name": "20newsgroups", "vocabulary": 99}).model.name == "mlp"
    assert Experiment(dataset="20newsgroups", model={"hidden": 7}).model.hidden == 7
    assert Experiment(dataset="20newsgroups", model="cnn").model.name == Experiment().model.name == "cnn"


def test_data_sets_do_differ_in_their_sizes():
    assert len({Experiment(dataset=name).training.batch_size for name in datasets}) > 1


def test_parameters_without_a_name_go_to_the_component_used_anyway():
    experiment = Experiment(defense={"threshold": 0.3}, detector={"sharpness": 2}, attack={"malicious_ratio": 0.4})
    assert (experiment.defense.name, experiment.defense.threshold) == ("gpd", 0.3)
    assert (experiment.detector.name, experiment.detector.sharpness) == ("persistence", 2)
    assert (experiment.attack.name, experiment.attack.malicious_ratio) == ("none", 0.4)
    paper = Experiment(defense="gpd-paper", detector={"temperature": 2})
    assert (paper.detector.name, paper.detector.temperature) == ("consistency", 2)


WRONG = [
    ({"attackk": "none"}, ["'attackk'", "did you mean 'attack'?", "topology"]),
    ({"training": {"bach_size": 3}}, ["training: 'bach_size'", "did you mean 'batch_size'?"]),
    ({"training": 5}, ["training: 5", "dictionary"]),
    ({"training": {"gradient": "epoch"}}, ["training.gradient: 'epoch'", "'epoch-sum'"]),
    ({"training": {"batch_size": 0}}, ["training.batch_size: 0", "greater than or equal to 1"]),
    ({"training": {"step_size": 0}}, ["training.step_size: 0", "greater than 0"]),
    ({"training": {"step_size": float("nan")}}, ["training.step_size: nan", "finite"]),
    ({"training": {"algorithm": "dsgd"}}, ["training.algorithm: 'dsgd'", "'gpd' needs 'dsgt'"]),
    ({"attack": {"target": 3}}, ["attack: 'target'", "malicious_ratio"]),
    ({"attack": {"name": "backdoor-9", "tarrget": 1}}, ["attack: 'tarrget'", "did you mean 'target'?"]),
    ({"attack": {"name": "backdor-9", "target": 1}}, ["attack: 'backdor-9'", "did you mean 'backdoor-9'?"]),
    ({"attack": {"name": "backdoor-9", "target": -1}}, ["attack.target: -1", "greater than or equal to 0"]),
    ({"attack": {"malicious_ratio": 1.0}}, ["attack.malicious_ratio: 1.0", "less than 1"]),
    ({"attack": {"malicious_ratio": float("nan")}}, ["attack.malicious_ratio: nan"]),
    ({"attack": {"malicious_level": 1.5}}, ["attack.malicious_level: 1.5", "less than or equal to 1"]),
    ({"attack": {"malicious_clients": [0, "x"]}}, ["attack.malicious_clients.1: 'x'", "integer"]),
    ({"attack": 3}, ["attack: 3", "give a name"]),
    ({"defense": None}, ["defense: None", "allowed: bulyan"]),
    ({"defense": ["gpd"]}, ["defense: ['gpd']", "allowed: bulyan"]),
    ({"defense": {"name": "gdp"}}, ["defense: 'gdp'", "did you mean 'gpd'?"]),
    ({"defense": {"threshold": 1}}, ["defense.threshold: 1", "less than 1"]),
    ({"detector": {"temperature": 1}}, ["detector: 'temperature'", "sharpness"]),
    ({"detector": {"trusted": "x"}}, ["detector.trusted: 'x'", "should be a list"]),
    ({"clients": 3, "detector": {"trusted": [0, 3]}}, ["detector.trusted: [0, 3]", "clients from 0 to 2"]),
    ({"detector": {"trusted": [1, 1]}}, ["detector.trusted: [1, 1]", "distinct"]),
    ({"detector": "historyy"}, ["detector: 'historyy'", "did you mean 'history'?"]),
    ({"topology": {"name": "ring", "degree": 3}}, ["topology.degree: 3", "'ring' takes no parameters"]),
    ({"topology": "file"}, ["topology.path", "'file' needs it"]),
    ({"partition": {"name": "label-dir", "alpha": -1}}, ["partition.alpha: -1", "greater than 0"]),
    ({"model": {"name": "mlp", "hiddn": 3}}, ["model: 'hiddn'", "did you mean 'hidden'?"]),
    ({"mixing": "unifrm"}, ["mixing: 'unifrm'", "'uniform' or 'metropolis'"]),
    ({"clients": 1}, ["clients: 1", "greater than or equal to 2"]),
    ({"clients": "many"}, ["clients: 'many'", "integer"]),
    ({"rounds": 0}, ["rounds: 0", "greater than or equal to 1"]),
    ({"rounds": 2.5}, ["rounds: 2.5", "integer"]),
    ({"eval_every": 0}, ["eval_every: 0", "greater than or equal to 1"]),
    ({"seed": -1}, ["seed: -1", "greater than or equal to 0"]),
    ({"seed": 2**32}, ["seed: 4294967296", "less than 4294967296"]),
    ({"device": "gpu"}, ["device: 'gpu'", "'cpu', 'cuda' or 'cuda:N'"]),
    ({"device": "meta"}, ["device: 'meta'", "'cpu', 'cuda' or 'cuda:N'"]),
    ({1: 2}, ["1: 1", "strings"]),
]


@pytest.mark.parametrize(("settings", "parts"), WRONG, ids=[str(settings) for settings, _ in WRONG])
def test_a_refusal_names_the_field_the_value_and_what_is_allowed(settings, parts):
    message = refusal(settings)
    assert all(part in message for part in parts), message


@pytest.mark.parametrize("kind", ["dataset", "partition", "topology", "model", "attack", "defense", "detector"])
def test_every_kind_of_component_refuses_an_unknown_name(kind):
    assert f"{kind}: 'nonsense' is not usable; " in refusal({kind: "nonsense"})


def test_settings_are_read_from_yaml_and_json(tmp_path):
    settings = {"rounds": 3, "attack": {"name": "backdoor-9", "target": 3}, "training": {"step_size": 1e-3}}
    (tmp_path / "e.yaml").write_text(yaml.safe_dump(settings))
    (tmp_path / "e.json").write_text(json.dumps(settings))
    read = [Experiment.parse(read_settings(tmp_path / name)) for name in ("e.yaml", "e.json")]
    assert read == [Experiment.parse(settings)] * 2


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"rounds: [3", "cannot be read"),
        (b"- rounds", "mapping"),
        (b"", "mapping"),
        (b"attack: !!map [a]", "expected a mapping node"),
        (b"\xff\xfe\x00", "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_holds_no_settings_is_refused(tmp_path, content, why):
    file = tmp_path / "e.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=why) as caught:
        read_settings(file)
    assert "e.yaml" in str(caught.value)


def test_what_is_merged_in_may_be_given_again(tmp_path):
    file = tmp_path / "e.yaml"
    file.write_text("a: &a {rounds: 3, seed: 1}\nb: {c: &c {<<: *a, rounds: 4}}\nd: {<<: *c, seed: 2}\n")
    assert read_settings(file)["d"] == {"rounds": 4, "seed": 2}


def test_an_option_refuses_a_setting_that_is_given_twice():
    with pytest.raises(ConfigError, match=r"--set: 'attack={z: 1, z: 2}'.*'z' is given twice"):
        assignment("attack={z: 1, z: 2}")


def test_a_path_is_set_in_nested_settings():
    settings = {"attack": "backdoor-9", "training": {"step_size": 0.1}}
    for path, value in [("attack.target", 3), ("training.batch_size", 8), ("detector.sharpness", 2), ("rounds", 5)]:
        set_path(settings, path, value)
    assert settings == {
        "attack": {"name": "backdoor-9", "target": 3},
        "training": {"step_size": 0.1, "batch_size": 8},
        "detector": {"sharpness": 2},
        "rounds": 5,
    }


def test_setting_a_path_leaves_the_callers_inner_settings_alone():
    inner = {"step_size": 0.1}
    settings = {"training": inner}
    set_path(settings, "training.step_size", 0.2)
    assert inner == {"step_size": 0.1}


def test_an_error_in_a_union_names_the_field_alone():
    with pytest.raises(ConfigError, match=r"^attack\.z: nan"):
        Experiment.parse({"attack": {"name": "lie", "z": float("nan")}})


@pytest.mark.parametrize("defense", [{"name": "ldp", "scale": float("inf")}, {"name": "byz", "radius": float("inf")}])
def test_infinite_parameters_are_refused(defense):
    with pytest.raises(ConfigError, match="finite"):
        Experiment.parse({"defense": defense})


@pytest.mark.parametrize("name", ["byz", "fed-recover"])
def test_a_horizon_is_the_length_of_the_run_unless_it_is_given(name):
    assert Experiment(defense=name, rounds=70).defense.horizon == 70
    assert Experiment(defense={"name": name, "horizon": 90}, rounds=70).defense.horizon == 90


def test_trusting_nobody_is_no_setting_so_that_runs_from_before_there_was_it_are_the_same():
    assert "trusted" not in Experiment.parse({}).to_dict()["detector"]
    assert Experiment.parse({"detector": {"trusted": []}}).digest() == Experiment.parse({}).digest()
    some = Experiment.parse({"detector": {"trusted": [2]}})
    assert some.to_dict()["detector"]["trusted"] == [2]
    assert some.digest() != Experiment.parse({}).digest()
    assert through_json(some) == some


@pytest.mark.parametrize("probation", [0, 2**31 + 1, 10**19])
def test_a_probation_is_a_number_that_can_be_doubled(probation):
    with pytest.raises(ConfigError, match=r"defense\.probation"):
        Experiment.parse({"defense": {"name": "gpd", "probation": probation}})
