"""What a run folder gives back: the models that were evaluated, each user's own, and the generator."""

import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import fedgen
from fedgen.algorithms.fedavg import fedavg
from fedgen.core.losses import infer
from fedgen.errors import FedgenError
from fedgen.runs.checkpoint import load_tree
from fedgen.runs.trained import Trained, needed_of_users
from fedgen.use.classifier import Classifier, Whose
from fedgen.use.form import read_form
from fedgen.use.inputs import samples_of
from helpers import blobs, built, play, small_setup
from use_runs import NAMES, named_data, small_run


def test_a_loaded_run_knows_what_was_run(whole: fedgen.Result) -> None:
    run = fedgen.load(str(whole.path))
    assert run.algorithms == ("fedgen", "fedavg")
    assert run.seeds == (0, 1)
    assert run.config.rounds == 3
    assert [r["round"] for r in run.metrics if r["algorithm"] == "fedavg" and r["seed"] == 1] == [1, 2, 3]
    assert list(run.results) == whole["results"]
    assert run.class_names == NAMES
    assert "\n" not in repr(run)
    assert "fedavg" in repr(run)


@pytest.mark.parametrize(("algorithm", "seed"), [("fedgen", 0), ("fedgen", 1), ("fedavg", 1)])
def test_a_global_model_predicts_what_the_run_scored(whole: fedgen.Result, algorithm: str, seed: int) -> None:
    model = fedgen.load(whole.path).model(algorithm, seed=seed)
    data = named_data()
    right = model.predict(data.x_test) == data.y_test
    last = [r for r in whole.metrics if r["algorithm"] == algorithm and r["seed"] == seed][-1]
    assert 100 * right.mean() == pytest.approx(last["accuracy"])
    p = model.predict_proba(data.x_test[:10])
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-5)
    z = model.logits(data.x_test[:10])
    np.testing.assert_allclose(p, np.exp(z) / np.exp(z).sum(axis=1, keepdims=True), rtol=1e-4)


def test_features_are_what_the_last_layer_takes(whole: fedgen.Result) -> None:
    model, x = fedgen.load(whole.path).model("fedgen"), named_data().x_test[:7]
    z = model.features(x)
    assert z.shape == (7, 6)
    last = model.network.params.predictor
    np.testing.assert_allclose(z @ last["weight"] + last["bias"], model.logits(x), rtol=1e-4, atol=1e-5)
    # by hand: a hidden layer with ReLU, and a linear one, of bytes scaled to -1 .. 1
    layers = model.network.params.extractor
    h = ((x / 255 - 0.5) / 0.5).reshape(7, -1) @ layers["hidden"]["weight"] + layers["hidden"]["bias"]
    expected = np.maximum(h, 0) @ layers["latent"]["weight"] + layers["latent"]["bias"]
    np.testing.assert_allclose(z, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_with_partial_sharing_each_user_has_its_model_of_every_algorithm(partial: fedgen.Result) -> None:
    """The folder's checkpoint has the last algorithm's users only."""
    run, data = fedgen.load(partial.path), named_data()
    for algorithm in ("fedgen", "fedavg"):
        accuracies = [np.mean(run.model(algorithm, user=k).predict(data.x_test) == data.y_test) for k in range(6)]
        last = [r for r in partial.metrics if r["algorithm"] == algorithm][-1]
        assert 100 * np.mean(accuracies) == pytest.approx(last["accuracy_users"])
        assert len(set(accuracies)) > 1
    first, second = (run.model("fedgen", user=k).network for k in (0, 1))
    assert np.array_equal(first.params.predictor["weight"], second.params.predictor["weight"])
    assert not np.array_equal(first.params.extractor["hidden"]["weight"], second.params.extractor["hidden"]["weight"])
    with pytest.raises(FedgenError, match=r"no global model.*user=0"):
        run.model("fedgen")
    with pytest.raises(FedgenError, match="users 0 to 5"):
        run.model("fedgen", user=6)


def test_where_all_is_shared_a_users_model_is_the_global_one(whole: fedgen.Result) -> None:
    run, x = fedgen.load(whole.path), named_data().x_test[:9]
    np.testing.assert_array_equal(run.model("fedavg", user=3).logits(x), run.model("fedavg").logits(x))
    assert not list((Path(str(whole.path)) / "models").glob("*.users.*")), "nothing is kept twice"


def _needed(algorithm: str, **settings: object) -> dict[str, bool] | None:
    setup, made = built(algorithm, **settings)
    needed = needed_of_users(made, setup.task)
    return (
        None if needed is None else {jax.tree_util.keystr(k): v for k, v in jax.tree_util.tree_leaves_with_path(needed)}
    )


def test_only_what_predictions_need_is_kept_of_users() -> None:
    assert _needed("fedavg") is None
    partly = _needed("scaffold", share="predictor")
    assert partly is not None
    extractors = {name: kept for name, kept in partly.items() if name.startswith(".base.params.extractor")}
    assert extractors
    assert all(extractors.values())
    assert not any(kept for name, kept in partly.items() if name not in extractors), "no control variates"
    momentum = _needed("fedavg", share="predictor", momentum=0.9, optimizer_state="kept")
    assert momentum is not None
    assert {name for name, kept in momentum.items() if kept} == {n for n in momentum if n.startswith(".own.params.")}
    ditto = _needed("ditto")
    assert ditto is not None
    assert all(ditto.values())


def test_users_that_only_fine_tune_have_no_models_to_load(tmp_path: Path) -> None:
    result = small_run(tmp_path / "run", "fedavg", rounds=1, finetune_steps=1)
    assert not list((tmp_path / "run/models").glob("*.users.*"))
    for run in (result, fedgen.load(tmp_path / "run")):
        with pytest.raises(FedgenError, match=r"only by fine-tuning.*leave out the user"):
            run.model(user=0)
        assert run.model().predict(named_data().x_test[:2]).shape == (2,)


def test_without_batchnorm_users_that_keep_their_statistics_have_the_global_model(tmp_path: Path) -> None:
    small_run(tmp_path / "run", "fedavg", rounds=1, statistics="local")
    run, x = fedgen.load(tmp_path / "run"), named_data().x_test[:2]
    assert not list((tmp_path / "run/models").glob("*.users.*"))
    np.testing.assert_array_equal(run.model(user=0).logits(x), run.model(user=1).logits(x))


def test_the_generator_samples_features_of_labels(whole: fedgen.Result) -> None:
    run = fedgen.load(whole.path)
    generator = run.generator("fedgen", seed=0)
    z, labels = generator.sample([0, 3, 3])
    assert z.shape == (3, 6)
    assert labels.tolist() == [0, 3, 3]
    assert not np.array_equal(z[1], z[2]), "other noise"
    np.testing.assert_array_equal(generator.sample([0, 3, 3]).features, z)
    drawn = generator.sample(4000, seed=1).labels
    share = np.bincount(drawn, minlength=4) / 4000
    np.testing.assert_allclose(share, generator.label_distribution, atol=0.04)  # five deviations
    # by hand, with the same noise: one hidden layer with BatchNorm in evaluation mode
    state = load_tree(run._folder.model_file("fedgen", 0), play(small_setup("fedgen"), 0).server)
    params, statistics = state.own.generator
    eps = np.asarray(fedgen.models.generator.draw_noise(jax.random.key(0), (3, 4), "normal"))
    h = np.concatenate([eps, np.eye(4)[[0, 3, 3]]], axis=1) @ params["hidden"]["weight"] + params["hidden"]["bias"]
    h = (h - statistics["mean"]) / np.sqrt(statistics["variance"] + 1e-5) * params["norm"]["scale"]
    h = np.maximum(h + params["norm"]["shift"], 0)
    np.testing.assert_allclose(h @ params["output"]["weight"] + params["output"]["bias"], z, rtol=1e-3, atol=1e-4)
    with pytest.raises(FedgenError, match="fedavg has no generator"):
        run.generator("fedavg")
    with pytest.raises(FedgenError, match="from 0 to 3"):
        generator.sample([4])


def test_images_and_arrays_as_the_run_took_them(whole: fedgen.Result, tmp_path: Path) -> None:
    model, x = fedgen.load(whole.path).model("fedavg"), named_data().x_test[:3]
    expected = model.logits(x)
    np.testing.assert_array_equal(model.logits(x[..., 0]), expected)  # without the channel
    np.testing.assert_allclose(model.logits(x[0]), expected[:1], rtol=1e-5)  # a single one
    np.testing.assert_array_equal(model.logits(x.astype(np.int64)), expected)
    files = []
    for number, image in enumerate(x):
        files.append(tmp_path / f"{number}.png")
        Image.fromarray(image[..., 0]).save(files[-1])
    np.testing.assert_array_equal(model.logits(files), expected)
    np.testing.assert_array_equal(model.logits([Image.open(file) for file in files]), expected)
    for wrong, message in (
        (x / 255, "whole numbers, 0 to 255"),
        (x.astype(int) * 2, "from .* to [3-5]"),
        (x[:, :4], "shape"),
        (x[:0], "no samples"),
        (tmp_path / "absent.png", "is not there"),
    ):
        with pytest.raises(FedgenError, match=message):
            model.predict(wrong)


def test_an_ensemble_predicts_and_has_no_features(tmp_path: Path) -> None:
    result = small_run(tmp_path / "run", "fedensemble", rounds=2)
    model, data = fedgen.load(result.path).model(), named_data()
    assert 100 * np.mean(model.predict(data.x_test) == data.y_test) == pytest.approx(result.metrics[-1]["accuracy"])
    with pytest.raises(FedgenError, match="does not predict with one network"):
        model.features(data.x_test)
    with pytest.raises(FedgenError, match="do not predict by themselves"):
        fedgen.load(result.path).model(user=1)


def _own_model() -> fedgen.Model:
    def init(key: jax.Array) -> tuple[fedgen.Params, tuple]:
        a, b = jax.random.split(key)
        return fedgen.Params(jax.random.normal(a, (64, 5)), jax.random.normal(b, (5, 4))), ()

    return fedgen.Model(init, lambda w, s, x, train: (jnp.tanh(x.reshape(len(x), -1) @ w), s), lambda w, z: z @ w)


def test_a_network_of_ones_own_is_given_again(tmp_path: Path) -> None:
    settings = {"users": 4, "active": 2, "rounds": 2, "local_steps": 1, "alpha": 1.0, "eval_every": 1}
    result = fedgen.simulate("fedavg", data=named_data(), model=_own_model(), out=tmp_path / "run", **settings)
    with pytest.raises(FedgenError, match=r"network given as an object.*model=\.\.\."):
        fedgen.load(tmp_path / "run").model()
    model = fedgen.load(tmp_path / "run", model=_own_model()).model()
    x = named_data().x_test
    np.testing.assert_array_equal(model.logits(x), result.model().logits(x))
    assert 100 * np.mean(model.predict(x) == named_data().y_test) == pytest.approx(result.metrics[-1]["accuracy"])


def test_a_folder_of_an_earlier_version_is_read(whole: fedgen.Result, tmp_path: Path) -> None:
    """It has no data.json and no round in its models; its configuration lacks newer settings."""
    old = tmp_path / "old"
    shutil.copytree(str(whole.path), old)
    (old / "data.json").unlink()
    lines = (old / "config.toml").read_text().splitlines()
    newer = ("patience", "keep_best")
    (old / "config.toml").write_text("\n".join(line for line in lines if line.split(" = ")[0] not in newer))
    with pytest.raises(FedgenError, match=r"earlier version.*data="):
        fedgen.load(old).model()
    x = named_data().x_test
    found = fedgen.load(old, data=named_data()).model("fedgen").logits(x)
    np.testing.assert_array_equal(found, fedgen.load(whole.path).model("fedgen").logits(x))


@pytest.mark.parametrize(
    "changed", [{"scale": "cubic"}, {"dtype": "U7"}, {"dtype": "nothing"}, {"class_names": 3}, {"sample": []}]
)
def test_a_description_of_samples_that_was_damaged_is_noticed(changed: dict, tmp_path: Path) -> None:
    good = {**named_data().form._asdict()}
    (tmp_path / "data.json").write_text(json.dumps(good))
    assert read_form(tmp_path / "data.json") == named_data().form
    (tmp_path / "data.json").write_text(json.dumps({**good, **changed}))
    with pytest.raises(FedgenError, match="run it again"):
        read_form(tmp_path / "data.json")


def test_wrong_questions_get_a_sentence(whole: fedgen.Result, tmp_path: Path) -> None:
    run = fedgen.load(whole.path)
    for ask, message in (
        (lambda: fedgen.load(tmp_path), "no config.toml"),
        (lambda: run.model("fedavgg"), "did you mean 'fedavg'"),
        (lambda: run.model("fedavg", seed=2), "seeds 0, 1, not 2"),
        (lambda: run.model("fedavg", best=True), "--keep-best"),
    ):
        with pytest.raises(FedgenError, match=message):
            ask()


def test_a_dataset_shows_itself_in_a_line() -> None:
    shown = repr(named_data())
    assert "\n" not in shown
    assert shown == "Dataset('blobs': 600 training and 200 test samples of uint8 (8, 8, 1), 4 classes)"
    with pytest.raises(FedgenError, match="3 classes have names; name each"):
        fedgen.from_arrays(*blobs(50), *blobs(20, seed=1), class_names=["a", "b", "c"])


@pytest.mark.slow
def test_the_network_is_found_in_what_an_algorithm_keeps() -> None:
    """Also where it is deep in the state: SCAFFOLD's variates and FedOpt's moments are beside it."""
    for algorithm in ("scaffold", "fedopt"):
        setup = small_setup(algorithm)
        server = play(setup, 1).server
        model = Classifier(Whose(algorithm, 0), setup.config, setup.task, named_data().form, Trained(server, None, 1))
        base = server.base
        assert np.array_equal(model.network.params.predictor["weight"], base.params.predictor["weight"])
        x = setup.task.prepare(jnp.asarray(named_data().x_test[:5]))
        made = fedavg(setup.task, setup.federation)
        np.testing.assert_allclose(infer(setup.task.model, *model.network, x), made.predict_global(base, x), rtol=1e-5)


def test_weights_come_back_of_a_network_that_standardises_each_sample() -> None:
    """Of zeros it makes NaN."""
    init, extract, predict, *_ = _own_model()

    def standardised(w: jax.Array, s: tuple, x: jax.Array, train: bool) -> tuple:
        x = x.reshape(len(x), -1)
        return extract(w, s, (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True), train)

    model = fedgen.Model(init, standardised, predict)
    settings = {"users": 4, "active": 2, "rounds": 1, "local_steps": 1, "alpha": 1.0}
    found, x = fedgen.simulate("fedavg", data=named_data(), model=model, **settings).model(), named_data().x_test[:5]
    np.testing.assert_allclose(
        found.features(x) @ found.network.params.predictor, found.logits(x), rtol=1e-4, atol=1e-5
    )


def test_weights_come_back_of_a_network_that_is_no_number() -> None:
    setup = small_setup("fedavg")
    server = jax.tree.map(lambda a: np.full_like(a, np.nan), play(setup, 0).server)
    model = Classifier(Whose("fedavg", 0), setup.config, setup.task, named_data().form, Trained(server, None, 1))
    assert np.isnan(model.network.params.predictor["weight"]).all()


@pytest.mark.parametrize(("kept", "given"), [("uint8", np.uint16), ("uint16", np.uint8)])
def test_images_of_another_depth_are_refused(kept: str, given: type, tmp_path: Path) -> None:
    form = named_data().form._replace(dtype=kept, max_value=4095 if kept == "uint16" else 255)
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8)).astype(kept)
    Image.fromarray(pixels).save(tmp_path / "same.png")
    for same in (tmp_path / "same.png", Image.fromarray(pixels)):
        np.testing.assert_array_equal(samples_of(same, form)[0, ..., 0], pixels)
    Image.fromarray(pixels.astype(given)).save(tmp_path / "other.png")
    for other in (tmp_path / "other.png", Image.fromarray(pixels.astype(given))):
        with pytest.raises(FedgenError, match=r"bits for each value.*images of this run have"):
            samples_of(other, form)
    if kept == "uint16":
        with pytest.raises(FedgenError, match="took samples of 16 bits"):
            samples_of(pixels.astype(np.uint8), form)
