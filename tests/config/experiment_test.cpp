#include "dtrain/config/experiment.h"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "temporary_file.h"

namespace dtrain::config {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

Experiment read_text(const std::string& text, const std::string& name = "experiment.yaml") {
  const TemporaryFile file(text, name);
  return read_experiment(file.path());
}

TEST(Experiment, DefaultsAreThoseOfTheDesign) {
  const Experiment experiment = read_text(kLeast, "small-net.yaml");
  EXPECT_EQ(experiment.name, "small-net");
  EXPECT_EQ(experiment.description, "");
  EXPECT_TRUE(experiment.labels.empty());
  EXPECT_THAT(experiment.entrypoint, ElementsAre("trial"));
  EXPECT_EQ(experiment.resources, Resources());
  EXPECT_EQ(experiment.resources.slots_per_trial, 1);
  EXPECT_EQ(experiment.optimizations, Optimizations());
  EXPECT_EQ(experiment.optimizations.tensor_fusion_threshold_bytes, 64 << 20);
  EXPECT_EQ(experiment.global_batch_size, 64);
  EXPECT_EQ(experiment.searcher.max_length, (Length{LengthUnit::kEpochs, 2}));
  EXPECT_TRUE(experiment.searcher.smaller_is_better);
  EXPECT_EQ(experiment.min_validation_period, Length());
  EXPECT_FALSE(experiment.perform_initial_validation);
  EXPECT_EQ(experiment.min_checkpoint_period, Length());
  EXPECT_EQ(experiment.checkpoint_policy, CheckpointPolicy::kBest);
  EXPECT_EQ(experiment.checkpoint_storage, CheckpointStorage());
  EXPECT_FALSE(experiment.records_per_epoch);
  EXPECT_EQ(experiment.scheduling_unit, 100);
  EXPECT_EQ(experiment.communication_timeout, std::chrono::seconds(600));
  EXPECT_EQ(experiment.communication_security, comm::Security::kProof);
  EXPECT_EQ(experiment.experiment_seed, 0u);
  EXPECT_EQ(experiment.data, Json::object());
  EXPECT_EQ(experiment.initial_weights, InitialWeights());
  EXPECT_TRUE(experiment.environment_variables.empty());
  EXPECT_EQ(experiment.text, kLeast);
}

TEST(Experiment, LeavesTheNumberOfSlotsOpen) {
  const Experiment experiment =
      read_text(kLeast + "resources:\n  slots_per_trial: auto\n  max_slots: 4\n", "open.yaml");
  EXPECT_EQ(experiment.resources.slots_per_trial, 0);
  EXPECT_EQ(experiment.resources.max_slots, 4);
  EXPECT_THAT(experiment.auto_slots_at, testing::EndsWith("open.yaml:5"));
  EXPECT_EQ(to_json(experiment).at("resources").at("slots_per_trial"), "auto");
  EXPECT_EQ(read_text(kLeast).auto_slots_at, "");
}

TEST(Experiment, ElasticSlotsIncludeTheNumberAskedFor) {
  const auto read = [](const std::string& resources) { return read_text(kLeast + "resources: " + resources + "\n"); };
  const Experiment given = read("{slots_per_trial: 4, elastic: {min: 1}}");
  EXPECT_EQ(given.resources.elastic, (Elastic{1, {}}));
  EXPECT_EQ(given.resources.most_slots(), 4);
  EXPECT_THAT(given.elastic_at, testing::EndsWith(":4"));
  EXPECT_EQ(read("{elastic: {max: 4}}").resources.slots_per_trial, 4);
  EXPECT_EQ(read("{elastic: {min: 2, max: 4}}").resources.slots_per_trial, 4);
  EXPECT_EQ(read("{elastic: {min: 2}}").resources.slots_per_trial, 2);
  EXPECT_EQ(read("{slots_per_trial: 3, elastic: {min: 2, max: 4}, max_slots: 4}").resources.most_slots(), 4);
  EXPECT_EQ(read("{slots_per_trial: 3}").elastic_at, "");
}

TEST(Experiment, AnUnchangedScriptHasItsOwnLength) {
  for (const char* const searcher : {"", "searcher: {metric: loss}\n"}) {
    const Experiment experiment = read_text(
        std::string("entrypoint: train.py\nas_is: record\nhyperparameters: {global_batch_size: 8}\n") + searcher);
    EXPECT_EQ(experiment.searcher.max_length, (Length{LengthUnit::kEpochs, kEpochsOfScripts}));
  }
}

TEST(Experiment, TracesTheBatchesItIsTold) {
  EXPECT_EQ(read_text(kLeast).profiling.traced(), std::nullopt);
  EXPECT_EQ(read_text(kLeast + "profiling: {trace: {begin_on_batch: 5, end_after_batch: 5}}\n").profiling.traced(),
            (BatchRange{5, 5}));
  const Profiling enabled =
      read_text(kLeast + "profiling: {enabled: true, begin_on_batch: 3, end_after_batch: 9}\n").profiling;
  EXPECT_TRUE(enabled.enabled);
  EXPECT_EQ(enabled.traced(), (BatchRange{3, 9}));
  const auto all = read_text(kLeast + "profiling: {enabled: true}\n").profiling.traced();
  ASSERT_TRUE(all);
  EXPECT_EQ(all->begin_on_batch, 1);
  EXPECT_GT(all->end_after_batch, 1'000'000'000);
}

TEST(Experiment, EveryDefaultMayBeWrittenOut) {
  EXPECT_NO_THROW(read_text(kLeast + R"(
description: ""
labels: []
resources: {slots_per_trial: 1, elastic: null, cores_per_slot: auto, slot_type: auto, priority: 42, is_single_node: false, resource_pool: default, max_slots: null}
optimizations:
  aggregation_frequency: 1
  average_aggregated_gradients: true
  average_training_metrics: true
  gradient_compression: false
  tensor_fusion_threshold: 64
  tensor_fusion_cycle_time: null
  auto_tune_tensor_fusion: false
  mixed_precision: O0
  tf32: true
  cudnn_benchmark: false
  attention: auto
  grad_updates_size_file: null
  sharded_optimizer: auto
  sharded_gradients: auto
  local_sgd: null
  matmul: auto
  operators: auto
profiling: {enabled: false, begin_on_batch: 0, end_after_batch: null, sync_timings: true, trace: null, prometheus: null,
            calibration: true, kernel_times: auto}
min_validation_period: {batches: 0}
min_checkpoint_period: {batches: 0}
early_stopping: null
checkpoint_policy: best
checkpoint_storage: {type: null, save_trial_best: 1, save_trial_latest: 1, save_experiment_best: 0}
max_restarts: 5
records_per_epoch: null
scheduling_unit: 100
communication: {timeout: 600, backend: auto, security: proof}
reproducibility: {experiment_seed: 0}
environment: {environment_variables: {}}
)"));
}

// As YAML 1.2 and 1.1 read them both. What they read differently is refused: wrong/values.txt.
TEST(Experiment, ValuesWithoutATypeMeanTheSameInBothVersionsOfYaml) {
  const Experiment experiment = read_text(kLeast + R"(
data:
  words: [True, FALSE, ~, Null, "no", '017', "12:30", nope, yes_please, inf]
  numbers: [0x1F, +5, -0, 007, 00, .5, 5., -1.5e-3, 1e-3, 1E3, 1e+3, 01.5]
  texts: [0b, 0o8, 0X1F, 12:60, 0:30, 8080:80, a:30, _1, resnet_50, 3_layers, 2024-01-01, 10.0.0.1, <<]
)");
  EXPECT_EQ(experiment.data, Json::parse(R"({
    "words": [true, false, null, null, "no", "017", "12:30", "nope", "yes_please", "inf"],
    "numbers": [31, 5, 0, 7, 0, 0.5, 5.0, -0.0015, 0.001, 1000.0, 1000.0, 1.5],
    "texts": ["0b", "0o8", "0X1F", "12:60", "0:30", "8080:80", "a:30", "_1", "resnet_50", "3_layers", "2024-01-01",
              "10.0.0.1", "<<"]
  })"));
}

TEST(Experiment, EveryKeyArrives) {
  const TemporaryFile file(R"(
name: fashion
description: a test
labels: [one, 2]
entrypoint: [./train, --fast, "two words"]
hyperparameters:
  global_batch_size: {type: const, val: 128}
  lr: 1e-3
  momentum: {type: const, val: 0.9}
  layers: [16, 32]
  nested: {flag: true, word: "yes", quoted: "5", nothing: null}
resources: {slots_per_trial: 4, elastic: {min: 2, max: 8}, cores_per_slot: 2, slot_type: cpu, is_single_node: true, priority: 7, resource_pool: fast, max_slots: 8}
optimizations:
  aggregation_frequency: 4
  average_aggregated_gradients: false
  average_training_metrics: false
  tensor_fusion_threshold: 0.5
  tensor_fusion_cycle_time: 2.5
  auto_tune_tensor_fusion: true
  grad_updates_size_file: sizes.csv
  sharded_optimizer: true
  sharded_gradients: true
  mixed_precision: none
  tf32: false
  cudnn_benchmark: true
  attention: flash
  matmul: default
  operators: default
profiling: {prometheus: {port: 9400, address: 10.0.0.5}, calibration: false, kernel_times: 0}
searcher: {metric: accuracy, smaller_is_better: false, max_length: {records: 60000}}
min_validation_period: {batches: 100}
min_checkpoint_period: {records: 640}
checkpoint_policy: all
checkpoint_storage: {type: directory, container_path: kept, save_trial_best: 2, save_trial_latest: 3}
perform_initial_validation: true
early_stopping: {metric: loss, smaller_is_better: true, patience: 4, min_delta: 0.25}
records_per_epoch: 60000
scheduling_unit: 10
on_non_finite: stop
communication: {timeout: 2.5, backend: mpi}
reproducibility: {experiment_seed: 9223372036854775807}
data: {path: /data, workers: 2}
initial_weights: weights/final.safetensors
environment:
  environment_variables:
    - OMP_NUM_THREADS=1
    - FLAGS=a=b
)");
  const Experiment experiment = read_experiment(file.path());
  EXPECT_EQ(experiment.name, "fashion");
  EXPECT_EQ(experiment.description, "a test");
  EXPECT_THAT(experiment.labels, ElementsAre("one", "2"));
  EXPECT_THAT(experiment.entrypoint, ElementsAre("./train", "--fast", "two words"));
  EXPECT_EQ(experiment.global_batch_size, 128);
  EXPECT_EQ(experiment.profiling.prometheus, (Prometheus{"10.0.0.5", 9400}));
  EXPECT_FALSE(experiment.profiling.calibration);
  EXPECT_EQ(experiment.profiling.kernel_times, 0);
  EXPECT_EQ(experiment.optimizations.matmul, Matmul::kDefault);
  EXPECT_EQ(experiment.optimizations.operators, Operators::kDefault);
  EXPECT_EQ(to_line(experiment.hyperparameters),
            R"({"global_batch_size":128,"lr":0.001,"momentum":0.9,"layers":[16,32],)"
            R"("nested":{"flag":true,"word":"yes","quoted":"5","nothing":null}})");
  EXPECT_EQ(experiment.resources, (Resources{4, Elastic{2, 8}, 2, SlotType::kCpu, true, 7, "fast", 8}));
  const Optimizations& optimizations = experiment.optimizations;
  EXPECT_EQ(optimizations.aggregation_frequency, 4);
  EXPECT_FALSE(optimizations.average_aggregated_gradients);
  EXPECT_FALSE(optimizations.average_training_metrics);
  EXPECT_EQ(optimizations.tensor_fusion_threshold_bytes, 512 * 1024);
  EXPECT_EQ(optimizations.tensor_fusion_cycle_ms, 2.5);
  EXPECT_EQ(fusion_cycle_ms(optimizations, true), 2.5);
  EXPECT_EQ(fusion_cycle_ms({}, true), 0);
  EXPECT_EQ(fusion_cycle_ms({}, false), 1);
  EXPECT_TRUE(optimizations.auto_tune_tensor_fusion);
  EXPECT_EQ(optimizations.grad_updates_size_file, file.path().parent_path() / "sizes.csv");
  EXPECT_EQ(optimizations.sharded_optimizer, ShardedOptimizer::kOn);
  EXPECT_EQ(optimizations.sharded_gradients, ShardedGradients::kOn);
  EXPECT_FALSE(optimizations.tf32);
  EXPECT_TRUE(optimizations.cudnn_benchmark);
  EXPECT_EQ(optimizations.attention, Attention::kFlash);
  EXPECT_EQ(experiment.searcher, (Searcher{"accuracy", false, {LengthUnit::kRecords, 60000}}));
  EXPECT_EQ(experiment.min_validation_period, (Length{LengthUnit::kBatches, 100}));
  EXPECT_TRUE(experiment.perform_initial_validation);
  EXPECT_EQ(experiment.early_stopping, (EarlyStopping{"loss", true, 4, 0.25}));
  EXPECT_EQ(experiment.min_checkpoint_period, (Length{LengthUnit::kRecords, 640}));
  EXPECT_EQ(experiment.checkpoint_policy, CheckpointPolicy::kAll);
  EXPECT_EQ(experiment.checkpoint_storage.folder, file.path().parent_path() / "kept");
  EXPECT_EQ(experiment.checkpoint_storage.save_trial_best, 2);
  EXPECT_EQ(experiment.checkpoint_storage.save_trial_latest, 3);
  EXPECT_EQ(experiment.records_per_epoch, 60000);
  EXPECT_EQ(experiment.scheduling_unit, 10);
  EXPECT_TRUE(experiment.stop_on_non_finite);
  EXPECT_EQ(experiment.communication_timeout, std::chrono::milliseconds(2500));
  EXPECT_EQ(experiment.communication_backend, comm::Backend(comm::MpiBackend()));
  EXPECT_EQ(experiment.experiment_seed, 9223372036854775807u);
  EXPECT_EQ(to_line(experiment.data), R"({"path":"/data","workers":2})");
  EXPECT_EQ(experiment.initial_weights,
            (InitialWeights{.file = file.path().parent_path() / "weights/final.safetensors"}));
  EXPECT_THAT(experiment.environment_variables, ElementsAre(Pair("OMP_NUM_THREADS", "1"), Pair("FLAGS", "a=b")));
}

TEST(Experiment, StatesInMemoryHaveAnInterval) {
  const auto recovery = [](const std::string& value) {
    return read_text(kLeast + "recovery: " + value + "\n").recovery;
  };
  EXPECT_TRUE(recovery("{}").keeps_states());
  EXPECT_EQ(recovery("{}").seconds_between_states(), std::nullopt);
  EXPECT_EQ(recovery("{interval: auto}").seconds_between_states(), std::nullopt);
  EXPECT_EQ(recovery("{interval: 2.5}").seconds_between_states(), 2.5);
  EXPECT_FALSE(recovery("{interval: off}").keeps_states());
  for (const std::string wrong : {"0.01", "never", "-1", "1e9", "nan"}) {
    EXPECT_THROW(recovery("{interval: " + wrong + "}"), ConfigErrors) << wrong;
  }
}

TEST(Experiment, TheLossOfAHostIsRefusedAtItsLine) {
  EXPECT_EQ(read_text(kLeast).recovery.on_host_loss, OnHostLoss::kAuto);
  EXPECT_NO_THROW(refuse_on_host_loss(read_text(kLeast), "is not for one host", "leave it out"));
  EXPECT_THROW(read_text(kLeast + "recovery: {on_host_loss: grow}\n"), ConfigErrors);
  const Experiment fails = read_text(kLeast + "recovery: {on_host_loss: fail}\n");
  EXPECT_EQ(fails.recovery.on_host_loss, OnHostLoss::kFail);
  try {
    refuse_on_host_loss(fails, "is not for one host", "leave it out");
    ADD_FAILURE() << "it is not refused";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), testing::MatchesRegex(".*:[0-9]+: recovery.on_host_loss: is not for one host"));
  }
}

TEST(Experiment, StatesInMemoryHaveCopiesOnOtherHosts) {
  const auto recovery = [](const std::string& value) {
    return read_text(kLeast + "recovery: " + value + "\n").recovery;
  };
  EXPECT_EQ(recovery("{}").copies_among(3), 1);
  EXPECT_EQ(recovery("{}").copies_among(1), 0);
  EXPECT_EQ(recovery("{copies: 0}").copies_among(3), 0);
  EXPECT_EQ(recovery("{copies: 2}").copies_among(3), 2);
  EXPECT_EQ(recovery("{copies: 9}").copies_among(3), 2);
  for (const std::string wrong : {"-1", "1.5", "all", "1e9"}) {
    EXPECT_THROW(recovery("{copies: " + wrong + "}"), ConfigErrors) << wrong;
  }
  try {
    recovery("{interval: off, copies: 2}");
    FAIL();
  } catch (const ConfigErrors& errors) {
    EXPECT_THAT(errors.what(), HasSubstr("recovery.copies: has no effect with recovery.interval: off"));
  }
}

TEST(Experiment, EarlyStoppingJudgesAsTheSearcherDoes) {
  const auto stopping = [](const std::string& searcher, const std::string& value) {
    return read_text(
               "entrypoint: trial\nhyperparameters: {global_batch_size: 64}\nmin_validation_period: {batches: 2}\n"
               "searcher: {max_length: {epochs: 2}" +
               searcher + "}\nearly_stopping: " + value + "\n")
        .early_stopping;
  };
  EXPECT_EQ(stopping("", "null"), std::nullopt);
  EXPECT_EQ(stopping(", metric: f1, smaller_is_better: false", "{patience: 2}"), (EarlyStopping{"f1", false, 2, 0}));
  EXPECT_EQ(stopping(", metric: f1, smaller_is_better: false", "{metric: loss, smaller_is_better: true, patience: 2}"),
            (EarlyStopping{"loss", true, 2, 0}));
  EXPECT_EQ(stopping("", "{metric: loss, patience: 1, min_delta: 1e-3}"), (EarlyStopping{"loss", true, 1, 1e-3}));
}

TEST(Experiment, InitialWeightsAreAPathOrAMapping) {
  const auto weights = [](const std::string& value) {
    return read_text(kLeast + "initial_weights: " + value + "\n").initial_weights;
  };
  EXPECT_EQ(weights("null"), InitialWeights());
  EXPECT_EQ(weights("''"), InitialWeights());
  EXPECT_EQ(weights("/runs/0001-v1.2"), (InitialWeights{.file = "/runs/0001-v1.2"}));
  EXPECT_EQ(weights("{file: /a, strict: false, strip_prefix: module., rename: {b.: c., '': d.}, convert_types: true, "
                    "checkpoint: best}"),
            (InitialWeights{"/a", CheckpointChoice::kBest, false, true, "module.", {{"b.", "c."}, {"", "d."}}}));
  EXPECT_EQ(weights("{file: /a, checkpoint: latest}"), weights("{file: /a, checkpoint: newest}"));
  const Experiment mapped = read_text(kLeast + "initial_weights: {file: /a, rename: {b.: c.}}\n");
  EXPECT_EQ(to_json(mapped).at("initial_weights").dump(),
            R"({"file":"/a","checkpoint":"newest","strict":true,"convert_types":false,"strip_prefix":"",)"
            R"("rename":{"b.":"c."},"training_state":false})");
  EXPECT_EQ(weights("{file: /a, training_state: true}"), (InitialWeights{.file = "/a", .training_state = true}));
  EXPECT_EQ(to_json(read_text(kLeast + "initial_weights: {file: /a}\n")).at("initial_weights"), "/a");
}

TEST(Experiment, CompressionIsAWordOrAMapping) {
  using comm::Compression;
  const auto compression = [](const std::string& value) {
    return read_text(kLeast + "optimizations: {gradient_compression: " + value + "}\n")
        .optimizations.gradient_compression;
  };
  EXPECT_EQ(compression("false"), Compression());
  EXPECT_EQ(compression("true"), Compression(comm::Fp16()));
  EXPECT_EQ(compression("'true'"), Compression(comm::Fp16()));
  EXPECT_EQ(compression("'false'"), Compression());
  EXPECT_EQ(compression("bf16"), Compression(comm::Bf16()));
  EXPECT_EQ(compression("{kind: int8}"), Compression(comm::Int8()));
  EXPECT_EQ(compression("{kind: powersgd, rank: 2, warmup_steps: 0}"), Compression(comm::PowerSgd{2, 0}));
  EXPECT_EQ(compression("{kind: topk, ratio: 0.5}"), Compression(comm::TopK{0.5}));
}

TEST(Experiment, LocalSteps) {
  const auto local = read_text(kLeast +
                               "optimizations: {local_sgd: {inner_steps: 50, outer_lr: 1, outer_momentum: 0, "
                               "compression: powersgd}}\n")
                         .optimizations.local_sgd;
  EXPECT_EQ(local, (LocalSgd{50, 1, 0, comm::PowerSgd()}));
}

TEST(Experiment, EntrypointTextIsCutIntoWordsAsAShellDoes) {
  const auto words = [](const std::string& text) {
    return read_text("entrypoint: " + text + kLeast.substr(kLeast.find('\n'))).entrypoint;
  };
  EXPECT_THAT(words("train --lr 0.1"), ElementsAre("train", "--lr", "0.1"));
  EXPECT_THAT(words(R"(train "two words" 'it''s' a\ b "")"), ElementsAre("train", "two words", "its", "a b", ""));
}

TEST(Experiment, EnvironmentVariablesMayBeAMapping) {
  const Experiment experiment = read_text(kLeast + "environment: {environment_variables: {A: 007, B: , C: x y}}\n");
  EXPECT_THAT(experiment.environment_variables, ElementsAre(Pair("A", "007"), Pair("B", ""), Pair("C", "x y")));
}

TEST(Experiment, VariablesMayBeListedByDevice) {
  const Experiment experiment = read_text(
      kLeast + "environment: {environment_variables: {cpu: [A=1, B=2], cuda: [A=3, NCCL_DEBUG=INFO], C: 4}}\n");
  EXPECT_THAT(experiment.environment_variables, ElementsAre(Pair("C", "4")));
  EXPECT_THAT(experiment.variables_of_ranks(false), ElementsAre(Pair("C", "4"), Pair("A", "1"), Pair("B", "2")));
  EXPECT_THAT(experiment.variables_of_ranks(true),
              ElementsAre(Pair("C", "4"), Pair("A", "3"), Pair("NCCL_DEBUG", "INFO")));
  EXPECT_EQ(to_json(experiment).at("environment").at("environment_variables").dump(),
            R"({"C":"***","cpu":["A=***","B=***"],"cuda":["A=***","NCCL_DEBUG=***"]})")
      << "they may be secrets";
}

TEST(HiddenVariables, OfOverridesAndOfPlans) {
  EXPECT_TRUE(holds_variables("environment.environment_variables={A: b}"));
  EXPECT_TRUE(holds_variables("environment={environment_variables: [A=b]}"));
  EXPECT_FALSE(holds_variables("data.environment.environment_variables=5"));
  EXPECT_FALSE(holds_variables("name=environment"));
  EXPECT_EQ(shown_override("environment.environment_variables.A=b=c"), "environment.environment_variables.A=***");
  EXPECT_EQ(shown_override("name=x"), "name=x");
  Json plan = Json::parse(R"({"command": ["trial", "--set", "environment={environment_variables: {A: b}}"],
    "overrides": ["environment.environment_variables.A=b", "name=x"],
    "experiment": {"environment": {"environment_variables": {"A": "b", "cuda": ["C=d=e"]}}},
    "before": {"plan": {"overrides": ["environment.environment_variables={A: b}"]}}})");
  hide_variables(plan);
  EXPECT_EQ(plan.dump(), R"({"command":["trial","--set","environment=***"],)"
                         R"("overrides":["environment.environment_variables.A=***","name=x"],)"
                         R"("experiment":{"environment":{"environment_variables":{"A":"***","cuda":["C=***"]}}},)"
                         R"("before":{"plan":{"overrides":["environment.environment_variables=***"]}}})");
  for (const char* text : {"5", "[]", R"({"experiment": {"environment": 7}, "overrides": {}, "command": [5, null]})"}) {
    Json other = Json::parse(text);
    const Json same = other;
    hide_variables(other);
    EXPECT_EQ(other, same);
  }
}

// The same without the keys that `known` does not have.
Json without_others(const Json& json, const Json& known) {
  if (!json.is_object() || !known.is_object()) return json;
  Json kept = Json::object();
  for (const auto& [name, value] : json.items()) {
    if (known.contains(name)) kept[name] = without_others(value, known[name]);
  }
  return kept;
}

TEST(Experiment, JsonShowsWhatIsInEffectUnderTheKeysOfTheFile) {
  const TemporaryFile file(kLeast + "optimizations: {aggregation_frequency: 2}\n", "demo.yaml");
  const std::string expected =
      std::string(
          R"({"name":"demo","description":"","labels":[],"entrypoint":["trial"],"hyperparameters":{"global_batch_size":64},)"
          R"("resources":{"slots_per_trial":1,"elastic":null,"cores_per_slot":"auto","slot_type":"auto","is_single_node":false,"priority":42,)"
          R"("resource_pool":"default","max_slots":null},)"
          R"("optimizations":{"aggregation_frequency":2,"average_aggregated_gradients":true,)"
          R"("average_training_metrics":true,"tensor_fusion_threshold":64,"tensor_fusion_cycle_time":null,)"
          R"("auto_tune_tensor_fusion":false,"grad_updates_size_file":null,"gradient_compression":false,)"
          R"("sharded_optimizer":"auto","local_sgd":null,"matmul":"auto","operators":"auto"},"profiling":{"enabled":false,"begin_on_batch":0,)"
          R"("end_after_batch":null,"sync_timings":true,"trace":null,"prometheus":null,"calibration":true,"kernel_times":"auto","rules":)") +
      to_line(to_json(ProfilingRules{})) +
      R"(},"searcher":{"metric":"","smaller_is_better":true,"max_length":{"epochs":2}},)"
      R"("min_validation_period":{"batches":0},"perform_initial_validation":false,"validation":{"beside":false},"max_restarts":5,"recovery":{"interval":"auto"},)"
      R"("records_per_epoch":null,)"
      R"("scheduling_unit":100,"on_non_finite":"warn","communication":{"timeout":600,"backend":"auto","security":"proof"},"reproducibility":{"experiment_seed":0},)"
      R"("data":{},"initial_weights":null,"environment":{"environment_variables":{}}})";
  // Keys that come later have tests of their own.
  EXPECT_EQ(to_line(without_others(to_json(read_experiment(file.path())), Json::parse(expected))), expected);
}

TEST(Length, IsCountedInBatchesRoundedUp) {
  EXPECT_EQ(in_batches({LengthUnit::kBatches, 7}, 64, 100), 7);
  EXPECT_EQ(in_batches({LengthUnit::kRecords, 128}, 64, 100), 2);
  EXPECT_EQ(in_batches({LengthUnit::kRecords, 129}, 64, 100), 3);
  EXPECT_EQ(in_batches({LengthUnit::kEpochs, 3}, 64, 100), 300);
  const std::int64_t huge = 1'000'000'000'000'000;
  EXPECT_EQ(in_batches({LengthUnit::kEpochs, huge}, 64, huge), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(to_string(Length{LengthUnit::kBatches, 1}), "1 batch");
  EXPECT_EQ(to_string(Length{LengthUnit::kBatches, 2}), "2 batches");
  EXPECT_EQ(to_string(Length{LengthUnit::kEpochs, 2}), "2 epochs");
}

}  // namespace
}  // namespace dtrain::config
