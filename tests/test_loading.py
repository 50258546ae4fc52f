"""Behaviours of models, tokenizers, devices and team arguments that these tests protect.

1. What is not there, or cannot be read, is told in one short line, whatever transformers raised.
2. A token without a row in the embedding table is refused with both numbers, or the table grows, the reference's too.
3. What a trainer is given as its agents is made uniform, and contradictions are refused before weights load.
4. Devices are resolved from one entry or one per agent, and must be there.
5. What was trained loads again.
"""

import json
import os
import subprocess
import sys

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, T5Config

from marl_runner.agents.pretrained import Pretrained
from marl_runner.agents.tiny import Tiny
from marl_runner.errors import ConfigError
from marl_runner.loading import fit_embeddings, from_pretrained, load_model, load_model_config, load_tokenizer
from marl_runner.policies.scripted import ScriptedPolicy
from marl_runner.settings import MAGRPOConfig
from marl_runner.team import resolve_devices, weights_sha256
from marl_runner.trainers.magrpo import MAGRPOTrainer
from marl_runner.trainers.sources import check_model_config, resolve_models, resolve_sources, team_size
from models import (
    CPU,
    EOS,
    PLAIN,
    VOCABULARY,
    A,
    completion_of,
    prompt_of,
    saved,
    tiny_gpt2,
    tiny_llama,
    tiny_policy,
    tiny_tokenizer,
)
from scripted_team import Recorder

ROWS = [{"prompt": "abc"}, {"prompt": "j"}]


def trainer_of(agents=None, tokenizer=None, model_config=None, agent_model=None, **settings):
    values = {"num_turns": 1, "num_train_epochs": 1, "num_generations": 2, "max_new_tokens": 4, "agent_devices": "cpu"}
    return MAGRPOTrainer(
        agent_model=agent_model,
        agents=agents,
        tokenizer=tokenizer,
        model_config=model_config,
        reward_func=lambda first, second: [float(len(first[0]))],
        train_dataset=ROWS,
        args=MAGRPOConfig(**(values | settings)),
        tracker=Recorder(),
    )


def load_weights(source):
    return load_model(source, None, None)


LOADERS = [load_tokenizer, load_model_config, load_weights]


def refusal(load, source):
    with pytest.raises(ConfigError) as caught:
        load(str(source))
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400 + len(str(source))
    return message


# --- what is not there ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("load", LOADERS)
def test_a_folder_that_is_not_there_is_one_short_line(load, tmp_path):
    assert refusal(load, tmp_path / "absent") == (
        f"model {tmp_path / 'absent'} is neither a local folder nor to be had from the hub (OSError); "
        "check agents.model and the network"
    )


def test_a_hub_id_without_a_network_is_one_short_line():
    code = (
        "from marl_runner.loading import load_model, load_model_config, load_tokenizer\n"
        "from marl_runner.errors import ConfigError\n"
        "for load in (load_tokenizer, load_model_config, lambda source: load_model(source, None, None)):\n"
        "    try: load('nobody/nothing')\n"
        "    except ConfigError as error: print(error)\n"
    )
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    line = "model nobody/nothing is neither a local folder nor to be had from the hub (OSError); "
    assert done.stdout.splitlines() == [line + "check agents.model and the network"] * 3


@pytest.mark.parametrize("error", [ImportError("needs the package xyz"), ValueError("bad\n  value")])
def test_a_hub_model_that_is_there_but_cannot_be_used_tells_why(error):
    def load(source):
        raise error

    message = refusal(lambda source: from_pretrained(load, source), "some/model")
    assert message == f"cannot load some/model: {' '.join(str(error).split())}"


def write_nothing(path):
    path.unlink()


def write_garbage(path):
    path.write_bytes(b"{ garbage")


def write_half(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    ("load", "name", "damage"),
    [
        (load_tokenizer, "tokenizer.json", write_garbage),
        (load_tokenizer, "tokenizer.json", write_half),
        (load_model_config, "config.json", write_nothing),
        (load_model_config, "config.json", write_garbage),
        (load_weights, "config.json", write_half),
        (load_weights, "model.safetensors", write_nothing),
        (load_weights, "model.safetensors", write_garbage),
        (load_weights, "model.safetensors", write_half),
    ],
)
def test_a_broken_checkpoint_is_one_short_line_with_its_folder(load, name, damage, tmp_path):
    folder = tmp_path / "model"
    saved(folder)
    damage(folder / name)
    message = refusal(load, folder)
    assert message.startswith(f"cannot load {folder}: ")
    assert len(message) > len(f"cannot load {folder}: ") + 10


def test_a_folder_without_a_tokenizer_or_without_anything_is_one_short_line(tmp_path):
    tiny_llama().save_pretrained(tmp_path / "bare")
    (tmp_path / "empty").mkdir()
    assert refusal(load_tokenizer, tmp_path / "bare").startswith(f"cannot load {tmp_path / 'bare'}: ")
    for load in LOADERS:
        assert refusal(load, tmp_path / "empty").startswith(f"cannot load {tmp_path / 'empty'}: ")


def test_a_file_in_place_of_a_folder_is_one_short_line(tmp_path):
    saved(tmp_path)
    for load in LOADERS:
        assert refusal(load, tmp_path / "model.safetensors").startswith(f"cannot load {tmp_path}/model.safetensors: ")


def test_a_model_that_is_no_causal_language_model_is_one_short_line(tmp_path):
    saved(tmp_path)
    T5Config(vocab_size=VOCABULARY).save_pretrained(tmp_path)
    assert "T5Config" in refusal(load_weights, tmp_path)


@pytest.mark.parametrize("implementation", ["nonsense", "flash_attention_2"])
def test_an_attention_implementation_that_is_not_to_be_had_is_one_short_line(implementation, tmp_path):
    folder = saved(tmp_path)
    message = refusal(lambda source: load_model(source, None, implementation), folder)
    assert message.startswith(f"cannot load {folder}: ")
    assert "nonsense" in message or "FlashAttention2" in message


def test_weights_are_float32_unless_a_dtype_is_asked_for(tmp_path):
    folder = saved(tmp_path, tiny_llama().to(torch.bfloat16))
    assert load_model(folder, None, None).dtype == torch.float32
    assert load_model(folder, "bfloat16", None).dtype == torch.bfloat16
    assert load_model(folder, torch.float64, None).dtype == torch.float64
    assert load_model(folder, "auto", None).dtype == torch.bfloat16
    assert load_model(folder, None, "eager").config._attn_implementation == "eager"


# --- tokens beyond the embedding table ------------------------------------------------------------------------


def larger_tokenizer(num_added=1):
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([f"[{index}]" for index in range(num_added)])
    return tokenizer


def test_a_tokenizer_as_large_as_the_table_or_smaller_is_taken_as_it_is():
    for rows in (VOCABULARY, VOCABULARY + 5):
        model = tiny_llama(vocab_size=rows)
        fit_embeddings(model, tiny_tokenizer(), None, 0, "x")
        fit_embeddings(model, tiny_tokenizer(), {"pad_token": "<pad>"}, 0, "x")
        assert model.get_input_embeddings().num_embeddings == rows


def test_one_token_too_many_is_refused_with_both_numbers_and_the_way_out():
    with pytest.raises(ConfigError) as caught:
        fit_embeddings(tiny_llama(), larger_tokenizer(), None, 0, "some/model")
    assert str(caught.value) == (
        "the tokenizer of some/model has 17 tokens up to id 16, but the model's embedding table has 16 rows; name the "
        "added tokens in agents.special_tokens to grow the table, or use the matching tokenizer"
    )


def test_a_tokenizer_with_few_tokens_but_a_great_id_is_refused_too():
    """Ids may have holes: 3 tokens, the last of them 40."""
    backend = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "b": 40}, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    with pytest.raises(ConfigError, match="has 3 tokens up to id 40, but the model's embedding table has 16 rows"):
        fit_embeddings(tiny_llama(), tokenizer, None, 0, "x")
    model = tiny_llama()
    fit_embeddings(model, tokenizer, {"unk_token": "<unk>"}, 0, "x")
    assert model.get_input_embeddings().num_embeddings == 41


def test_a_checkpoint_with_too_large_a_tokenizer_is_refused_before_its_weights_load(tmp_path):
    saved(tmp_path, tokenizer=larger_tokenizer(3))
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="has 19 tokens up to id 18, but the model's embedding table has 16 rows"):
        trainer_of(agents=[str(tmp_path)] * 2)


def test_a_preloaded_model_with_too_large_a_tokenizer_is_refused():
    with pytest.raises(ConfigError, match=r"tokenizer of LlamaForCausalLM has 17 tokens up to id 16, .* has 16 rows"):
        trainer_of(agents=[tiny_llama(), tiny_llama(seed=1)], tokenizer=larger_tokenizer())


@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt2])
def test_special_tokens_grow_the_table_of_every_agent_and_of_its_reference(make, tmp_path):
    folder = saved(tmp_path / "model", make())
    trainer = trainer_of(
        agent_model=folder, model_config={"special_tokens": {"pad_token": "[PAD]"}}, reference_kl_enabled=True
    )
    for agent in trainer.team.agents:
        for policy in (agent.policy, agent.reference):
            assert policy.model.get_input_embeddings().num_embeddings == VOCABULARY + 1
            assert policy.model.get_output_embeddings().weight.shape[0] == VOCABULARY + 1
            assert policy.model.config.vocab_size == VOCABULARY + 1
            assert torch.equal(
                policy.model.get_input_embeddings().weight[:VOCABULARY], make().get_input_embeddings().weight
            )
        assert weights_sha256(agent.policy) == weights_sha256(agent.reference)
        assert agent.policy.encode("a[PAD]") == (A, VOCABULARY)
        scored = agent.policy.token_log_probs([(prompt_of("abc"), completion_of((VOCABULARY, EOS)))])
        assert scored.isfinite().all()
    trainer.train()
    trainer.save_model(tmp_path / "out")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "agent_1")
    assert loaded.config.vocab_size == VOCABULARY + 1 == len(AutoTokenizer.from_pretrained(tmp_path / "out/agent_1"))
    assert torch.equal(loaded.lm_head.weight, trainer.team.agents[1].policy.model.lm_head.weight)


def test_new_rows_come_from_the_seed_and_leave_the_global_random_stream_as_it_was():
    rows = []
    for seed, global_seed in ((1, 5), (1, 6), (2, 5)):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(global_seed)
            before = torch.get_rng_state()
            model = tiny_llama()
            fit_embeddings(model, larger_tokenizer(2), {"pad_token": "<pad>"}, seed, "x")
            assert torch.equal(torch.get_rng_state(), before)
        assert model.get_input_embeddings().num_embeddings == VOCABULARY + 2
        rows.append(model.get_input_embeddings().weight[VOCABULARY:].detach())
    assert torch.equal(rows[0], rows[1])
    assert not torch.allclose(rows[0], rows[2])


def test_the_agents_of_a_team_get_new_rows_of_their_own(tmp_path):
    trainer = trainer_of(agent_model=saved(tmp_path), model_config={"special_tokens": {"pad_token": "[PAD]"}})
    first, second = (agent.policy.model.get_input_embeddings().weight for agent in trainer.team.agents)
    assert torch.equal(first[:VOCABULARY], second[:VOCABULARY])
    assert not torch.equal(first[VOCABULARY], second[VOCABULARY])


def test_an_end_token_among_the_special_tokens_ends_completions(tmp_path):
    trainer = trainer_of(agent_model=saved(tmp_path), model_config={"special_tokens": {"eos_token": "[END]"}})
    assert trainer.team.agents[0].policy.end_ids == {EOS, VOCABULARY}


def test_a_role_of_special_tokens_that_does_not_exist_is_refused_with_those_that_do(tmp_path):
    with pytest.raises(ConfigError, match=r"special_tokens=\{'pad': '\[PAD\]'\}: .*pad_token"):
        trainer_of(agent_model=saved(tmp_path), model_config={"special_tokens": {"pad": "[PAD]"}})


# --- what a trainer is given as its agents --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agents", "num_agents", "configured", "size"),
    [
        (None, None, None, 2),
        (None, 3, None, 3),
        (None, None, 4, 4),
        (["a", "b", "c"], None, None, 3),
        (("a",), 1, 1, 1),
        (None, 3, 3, 3),
    ],
)
def test_the_team_s_size_is_what_any_argument_says_and_two_otherwise(agents, num_agents, configured, size):
    assert team_size(agents, num_agents, configured) == size


@pytest.mark.parametrize(
    ("agents", "num_agents", "configured", "listed"),
    [
        (["a", "b", "c"], None, 2, "len(agents)=3, args.num_agents=2"),
        (["a", "b", "c"], 2, None, "len(agents)=3, num_agents=2"),
        (None, 3, 2, "num_agents=3, args.num_agents=2"),
        (["a"], 2, 3, "len(agents)=1, num_agents=2, args.num_agents=3"),
        (None, 0, 2, "num_agents=0, args.num_agents=2"),
    ],
)
def test_contradictory_sizes_are_all_listed(agents, num_agents, configured, listed):
    with pytest.raises(ConfigError) as caught:
        team_size(agents, num_agents, configured)
    assert str(caught.value) == f"the number of agents is contradictory: {listed}; make them agree"


@pytest.mark.parametrize(
    ("agents", "kind"), [("a/b", "str"), ({"a": 1}, "dict"), ((name for name in "ab"), "generator")]
)
def test_agents_that_are_no_list_are_refused_by_their_type(agents, kind):
    for configured in (None, 2):
        with pytest.raises(ConfigError, match=f"agents must be a list with one entry per agent, got {kind}"):
            team_size(agents, None, configured)


def test_one_identifier_serves_all_agents_and_a_list_names_each():
    assert resolve_models("a", None, 3) == ["a", "a", "a"]
    assert resolve_models(None, ["a", "b"], 2) == ["a", "b"]
    assert resolve_models("a", ["a", "a"], 2) == ["a", "a"]


def test_folders_may_be_given_as_paths(tmp_path):
    assert resolve_models(tmp_path, None, 2) == [str(tmp_path)] * 2
    assert resolve_models(None, [tmp_path, tmp_path], 2) == [str(tmp_path)] * 2


def test_no_agents_contradictory_agents_and_misplaced_models_are_refused():
    model = tiny_llama()
    for arguments, message in (
        ((None, None, 2), r"no agents: pass agent_model='…' or agents=\[…\]"),
        ((model, None, 2), r"agent_model must be a model identifier; pass preloaded models as agents=\[…\]"),
        (("a", ["a", "b"], 2), r"agent_model=a contradicts agents=\['a', 'b'\]; pass one of them"),
    ):
        with pytest.raises(ConfigError, match=message):
            resolve_models(*arguments)


@pytest.mark.parametrize("entry", [None, 1, {}])
def test_an_agent_that_is_no_model_is_refused(entry):
    with pytest.raises(ConfigError, match=f"an agent must be a model identifier, a model or a Policy, got {entry}"):
        trainer_of(agents=[tiny_llama(), entry], tokenizer=tiny_tokenizer())


def test_a_preloaded_model_needs_its_tokenizer_and_a_policy_needs_none():
    with pytest.raises(
        ConfigError, match=r"a preloaded model \(LlamaForCausalLM\) needs its tokenizer: pass tokenizer="
    ):
        resolve_sources([tiny_llama()], None, None)
    (source,) = resolve_sources([ScriptedPolicy([], context_length=9)], None, None)
    assert (source.tokenizer, source.context_length, source.name) == (None, 9, "ScriptedPolicy")


def test_one_tokenizer_is_shared_and_a_list_gives_each_agent_its_own():
    first, second = tiny_tokenizer(), tiny_tokenizer()
    llamas = [tiny_llama(), tiny_llama()]
    assert [source.tokenizer for source in resolve_sources(llamas, first, None)] == [first, first]
    assert [source.tokenizer for source in resolve_sources(llamas, [first, second], None)] == [first, second]
    with pytest.raises(ConfigError, match="tokenizer has 1 entries, but the team has 2 agents"):
        resolve_sources(llamas, [first], None)


def test_an_identifier_may_be_given_another_tokenizer_than_its_own(tmp_path):
    folder, other = saved(tmp_path), tiny_tokenizer(adds_bos=True)
    own, given = resolve_sources([folder, folder], [None, other], None)
    assert own.tokenizer("a")["input_ids"] == [A]
    assert given.tokenizer is other


def test_a_nested_part_of_the_model_configuration_is_one_with_the_rest():
    assert check_model_config({"model_kwargs": {"dtype": "bfloat16"}, "special_tokens": {}}) == {
        "special_tokens": {},
        "dtype": "bfloat16",
    }
    with pytest.raises(
        ConfigError, match="model_config has dtype=float32 and model_kwargs has dtype=bfloat16: keep one"
    ):
        check_model_config({"dtype": "float32", "model_kwargs": {"dtype": "bfloat16"}})
    with pytest.raises(ConfigError, match="model_config model_kwargs must be a mapping, got 5"):
        check_model_config({"model_kwargs": 5})
    with pytest.raises(ConfigError, match=r"no key 'temperature' .*; remove it"):
        check_model_config({"temperature": 0.5})


def test_an_unknown_key_of_the_model_configuration_names_the_nearest_and_all():
    assert check_model_config(None) == {}
    assert check_model_config({"dtype": "bfloat16", "special_tokens": {}}) == {
        "dtype": "bfloat16",
        "special_tokens": {},
    }
    with pytest.raises(ConfigError) as caught:
        check_model_config({"atn_implementation": "sdpa"})
    assert str(caught.value) == (
        "model_config has no key 'atn_implementation' (known: dtype, torch_dtype, attn_implementation, "
        "special_tokens); nearest: attn_implementation"
    )


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_an_unknown_dtype_of_the_model_configuration_names_the_nearest(key):
    for known in (None, "float32", "auto", torch.bfloat16):
        check_model_config({key: known})
    for unknown in ("float33", torch.int8):
        with pytest.raises(ConfigError, match=f"model_config {key} must be one of float32, bfloat16, .*, got '"):
            check_model_config({key: unknown})


# --- teams that load ------------------------------------------------------------------------------------------


def test_a_heterogeneous_team_loads_trains_and_saves_two_kinds_of_model(tmp_path):
    llama = saved(tmp_path / "llama", tiny_llama(), tiny_tokenizer(adds_bos=True))
    gpt2 = saved(tmp_path / "gpt2", tiny_gpt2(), tiny_tokenizer(padding_side="left"))
    trainer = trainer_of(agents=[llama, gpt2], agent_learning_rate=0.01)
    policies = [agent.policy for agent in trainer.team.agents]
    assert [type(policy.model).__name__ for policy in policies] == ["LlamaForCausalLM", "GPT2LMHeadModel"]
    assert [policy.encode("a") for policy in policies] == [(1, A), (A,)]
    before = [weights_sha256(policy) for policy in policies]
    trainer.train()
    after = [weights_sha256(policy) for policy in policies]
    assert all(digest not in before for digest in after)
    trainer.save_model(tmp_path / "out")
    for index, policy in enumerate(policies):
        folder = tmp_path / "out" / f"agent_{index}"
        model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
        ids = torch.tensor([policy.encode("abc.")])
        assert torch.equal(model.eval()(ids).logits, policy.model(ids).logits)
        assert tuple(tokenizer("abc.")["input_ids"]) == policy.encode("abc.")
        again = tiny_policy(load_model(str(folder), None, None), load_tokenizer(str(folder)))
        assert weights_sha256(again) == after[index]


def test_homogeneous_agents_start_equal_and_share_nothing(tmp_path):
    trainer = trainer_of(agent_model=saved(tmp_path))
    first, second = (agent.policy for agent in trainer.team.agents)
    assert weights_sha256(first) == weights_sha256(second)
    assert {p.data_ptr() for p in first.parameters()}.isdisjoint(p.data_ptr() for p in second.parameters())


def test_the_agents_option_for_pretrained_models_loads_one_for_all_or_one_for_each(tmp_path):
    llama, gpt2 = saved(tmp_path / "llama"), saved(tmp_path / "gpt2", tiny_gpt2())
    settings = {
        "num_agents": 2,
        "dtype": "bfloat16",
        "attn_implementation": "eager",
        "chat_template": False,
        "system_prompt": None,
        "role_prompts": None,
        "special_tokens": {"pad_token": "[PAD]"},
    }
    assert Pretrained(model=llama, models=None, **settings)(seed=0).agents == [llama, llama]
    option = Pretrained(model=None, models=[llama, gpt2], **settings)
    source = option(seed=0)
    assert source.agents == [llama, gpt2]
    trainer = trainer_of(agents=source.agents, tokenizer=source.tokenizer, model_config=source.model_config)
    for agent in trainer.team.agents:
        assert agent.policy.model.dtype == torch.bfloat16
        assert agent.policy.model.config._attn_implementation == "eager"
        assert agent.policy.model.config.vocab_size == VOCABULARY + 1
    sizes = option.sizes()
    assert [size.num_parameters for size in sizes] == [
        sum(p.numel() for p in make().parameters()) for make in (tiny_llama, tiny_gpt2)
    ]
    assert {size.bytes_per_weight for size in sizes} == {2}


def test_a_home_folder_is_written_with_a_tilde(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    saved(tmp_path / "models" / "tiny")
    option = Pretrained("~/models/tiny", None, 1, "float32", None, False, None, None, {})
    assert option.sources() == [f"{tmp_path}/models/tiny"]
    assert len(option(seed=0).tokenizer) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": None}, "name the team by agents.model"),
        ({"models": ["a", "b"]}, "name the team by agents.model"),
        ({"model": None, "models": ["a"]}, "agents.models has 1 entries, but agents.num_agents=2"),
        ({"role_prompts": ["{prompt}"] * 3}, "agents.role_prompts has 3 entries, but agents.num_agents=2"),
        ({"num_agents": 0}, "agents.num_agents must be >= 1, got 0"),
        (
            {"dtype": "float23"},
            "agents.dtype must be one of float32, bfloat16, float16, got 'float23'; nearest: float32",
        ),
        ({"system_prompt": "be"}, "agents.system_prompt needs agents.chat_template=true"),
    ],
)
def test_settings_of_a_pretrained_team_that_do_not_fit_together_are_refused(settings, message):
    values = {"model": "a", "models": None, "num_agents": 2, "dtype": "float32", "attn_implementation": None}
    values |= {"chat_template": False, "system_prompt": None, "role_prompts": None, "special_tokens": {}}
    with pytest.raises(ConfigError) as caught:
        Pretrained(**(values | settings))
    assert str(caught.value).startswith(message)


def test_the_tiny_team_comes_from_its_seed_and_leaves_the_global_random_stream_as_it_was():
    option = Tiny(num_agents=2, hidden_size=16, num_layers=1, num_heads=2, context_length=32)
    digests = []
    for seed in (1, 1, 2):
        before = torch.get_rng_state()
        source = option(seed=seed)
        assert torch.equal(torch.get_rng_state(), before)
        policies = [tiny_policy(m, t) for m, t in zip(source.agents, source.tokenizer, strict=True)]
        digests.append([weights_sha256(policy) for policy in policies])
        assert policies[0].context_length == 32
        assert [size.num_parameters for size in option.sizes()] == [
            sum(p.numel() for p in policy.parameters()) for policy in policies
        ]
    assert digests[0] == digests[1]
    assert len({*digests[0], *digests[2]}) == 4


def test_the_tiny_tokenizer_writes_lower_case_and_marks_what_it_does_not_know():
    policy = Tiny(1, 16, 1, 2, 32)(seed=0)
    (tokenizer,) = policy.tokenizer
    policy = tiny_policy(policy.agents[0], tokenizer)
    assert policy.prompt_text(policy.encode("Ab, c!\n<end>")) == "ab, c!\n<end>"
    assert policy.encode("é5") == (1, 1)
    assert policy.end_ids == {0}
    for completion in policy.generate([prompt_of("abc", tokenizer)], 64, PLAIN, [0])[0]:
        assert policy.encode(completion.text) == tuple(t for t in completion.token_ids if t > 1)


@pytest.mark.parametrize("name", ["num_agents", "hidden_size", "num_layers", "num_heads", "context_length"])
def test_a_size_of_the_tiny_team_below_one_is_refused(name):
    sizes = {"num_agents": 2, "hidden_size": 16, "num_layers": 1, "num_heads": 2, "context_length": 32}
    with pytest.raises(ConfigError, match=f"agents.{name} must be >= 1, got 0"):
        Tiny(**(sizes | {name: 0}))
    with pytest.raises(ConfigError, match=r"agents.hidden_size=18 must be a multiple of 2 \* agents.num_heads=4"):
        Tiny(**(sizes | {"hidden_size": 18}))


# --- devices --------------------------------------------------------------------------------------------------


@pytest.fixture
def cuda(monkeypatch):
    """Pretends that this machine has so many CUDA devices; none of them is used."""

    def pretend(count):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return pretend


def names(devices, count=3):
    return [str(device) for device in resolve_devices(devices, count, "agent_devices")]


def test_one_device_serves_all_agents_and_a_list_gives_each_its_own(cuda):
    cuda(4)
    assert names("cpu") == names(["cpu"]) == ["cpu"] * 3
    assert names("cuda:3") == ["cuda:3"] * 3
    assert names(["cuda:1", "cpu", "cuda:0"]) == ["cuda:1", "cpu", "cuda:0"]
    assert names(["cuda:2"], count=1) == ["cuda:2"]


@pytest.mark.parametrize(
    ("num_cuda", "shared", "auto"),
    [(0, ["cpu"] * 3, ["cpu"] * 3), (2, ["cuda:0"] * 3, ["cuda:0", "cuda:1", "cuda:0"])],
)
def test_auto_takes_the_cuda_devices_in_turn_and_no_setting_one_for_all(num_cuda, shared, auto, cuda):
    cuda(num_cuda)
    assert names(None) == shared
    assert names("auto") == names(["auto"]) == names(["auto", "auto", "auto"]) == auto
    assert names(["cpu", "auto", "cpu"])[1] == auto[1]


@pytest.mark.parametrize("devices", [[], ["cpu", "cpu"], ["cpu"] * 4])
def test_another_number_of_devices_than_one_or_one_per_agent_is_refused(devices):
    with pytest.raises(ConfigError, match=f"agent_devices has {len(devices)} entries, needs 1 or 3"):
        names(devices)


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "", "cuda:-1", None, 1.5])
def test_something_that_is_no_device_is_refused_with_what_is(device):
    with pytest.raises(ConfigError, match=r"agent_devices: .* is not a device; write cpu, cuda, cuda:0 or auto"):
        names([device] * 3)


@pytest.mark.parametrize(("device", "num_cuda"), [("cuda", 0), ("cuda:0", 0), ("cuda:2", 2)])
def test_a_cuda_device_that_is_not_there_is_refused_with_how_many_there_are(device, num_cuda, cuda):
    cuda(num_cuda)
    with pytest.raises(ConfigError) as caught:
        names(["cpu", device, "cpu"])
    assert str(caught.value) == f"agent_devices: '{device}' is not there; this machine has {num_cuda} CUDA devices"


def test_a_trainer_checks_the_devices_of_agents_and_references_by_name(cuda):
    cuda(0)
    for setting in ("agent_devices", "reference_devices"):
        with pytest.raises(ConfigError, match=f"{setting}: 'cuda:5' is not there"):
            trainer_of(
                agents=[tiny_llama(), tiny_llama(seed=1)],
                tokenizer=tiny_tokenizer(),
                reference_kl_enabled=True,
                **{setting: "cuda:5"},
            )


def test_a_reference_sits_on_its_own_device_or_beside_its_agent():
    for devices in (None, "cpu", ["cpu", "cpu"]):
        trainer = trainer_of(
            agents=[tiny_llama(), tiny_llama(seed=1)],
            tokenizer=tiny_tokenizer(),
            reference_kl_enabled=True,
            reference_devices=devices,
        )
        assert [agent.reference.device for agent in trainer.team.agents] == [CPU, CPU]


def test_a_checkpoint_s_sampling_fields_survive_training_and_do_not_leak(tmp_path):
    leak = {"eos_token_id": [EOS, 11], "top_k": 1, "top_p": 0.001, "repetition_penalty": 1.3}
    trainer = trainer_of(agent_model=saved(tmp_path / "model", generation_config=leak), temperature=2.0, top_p=1.0)
    trainer.train()
    drawn = {c.token_ids for _, root, _ in trainer.tracker.trees for K in root.completions_N_K for c in K}
    assert len(drawn) > 4
    trainer.save_model(tmp_path / "out")
    kept = json.loads((tmp_path / "out" / "agent_0" / "generation_config.json").read_text())
    assert {name: kept[name] for name in leak} == leak
