// The experiment file as typed values, and its strict reader: every key has an effect or is an error, and all errors
// of a file are reported at once. docs/experiment.md describes the keys. Plain values and their keys, no threads, no
// global state.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/base/json.h"
#include "dtrain/comm/backend_list.h"
#include "dtrain/comm/control.h"
#include "dtrain/config/checkpoints.h"
#include "dtrain/config/diagnostic.h"
#include "dtrain/config/keys.h"
#include "dtrain/config/model_job.h"
#include "dtrain/config/optimizations.h"
#include "dtrain/config/plateau.h"
#include "dtrain/config/profiling.h"
#include "dtrain/config/recovery.h"
#include "dtrain/config/resources.h"
#include "dtrain/config/tracking.h"

namespace dtrain::config {

struct Experiment;

// The keys that say what is trained: a program or a model, its hyperparameters and data. They depend on each other, so
// their types are written by hand (runtime/config/experiment/).
inline constexpr Key kModel{
    .name = "model",
    .text =
        "A file of torch.export (.pt2) or TorchScript (.pt) to train instead of a program, relative to this file's "
        "folder; or a pair of files, one to train and one to validate with. Needs loss, optimizer and data.",
    .more = "[More](#a-torchscript-model-without-writing-code).",
    .examples = R"(["cnn.pt2", {"train": "cnn_train.pt2", "eval": "cnn_eval.pt2"}])",
    .default_text = "none"};
inline constexpr Key kLoss{.name = "loss",
                           .text =
                               "The loss of a model experiment, averaged over the samples of the batch. cross_entropy: "
                               "targets are class numbers, outputs are logits.",
                           .more = "[Losses](#losses-and-outputs).",
                           .default_text = "required"};
inline constexpr Key kMetrics{
    .name = "metrics",
    .text =
        "The metrics of a model experiment besides the loss. K of top_K_accuracy is a number from 2 on. All but "
        "accuracy are computed in validation alone. null: accuracy, if the loss has it.",
    .more = "[Metrics](#metrics).",
    .examples = R"([["accuracy", "top_5_accuracy", "f1"]])",
    .default_text = "null"};
inline constexpr Key kOptimizer{
    .name = "optimizer",
    .text = "The optimizer. Names, meanings and defaults of its keys are those of torch.optim.",
    .default_text = "required"};
inline constexpr Key kEntrypoint{
    .name = "entrypoint",
    .text =
        "The program that every rank runs, and its arguments: a list, or text that is split into words as a shell does "
        "it. A name without a slash is looked up beside dtrain, then in PATH; other paths are relative to this file's "
        "folder. A Python file (train.py), or a dtrain.Trial in one (train.py:MyTrial), is relative to this file's "
        "folder, too.",
    .more = "[More](python.md#running).",
    .examples = R"(["./my_trial --verbose", ["./my_trial", "--name", "two words"], "train.py:MyTrial"])",
    .default_text = "required, or `model`"};
inline constexpr Key kHyperparameters{
    .name = "hyperparameters",
    .text = "global_batch_size, and any other values for the trial. {type: const, val: x} means x.",
    .more =
        "After the first batch, a warning names the keys that the trial has not read; with `model`, any key other than "
        "`global_batch_size` is an error."};
inline constexpr Key kGlobalBatchSize{
    .name = "global_batch_size",
    .text = "The records that all slots together train in one batch; at least resources.slots_per_trial.",
    .examples = R"([64, {"type": "const", "val": 64}])",
    .required = "a whole number of at least resources.slots_per_trial"};
inline constexpr Key kData{.name = "data",
                           .text = "With an entrypoint: any values for the trial. With a model: where its samples are.",
                           .more =
                               "A warning names the keys that the trial has not read, as for `hyperparameters`. For a "
                               "`model`: [these keys](#a-torchscript-model-without-writing-code).",
                           .default_text = "`{}`"};

std::unique_ptr<KeyType> model_form(Experiment& experiment);
std::unique_ptr<KeyType> loss_form(Experiment& experiment);
std::unique_ptr<KeyType> metrics_form(Experiment& experiment);
std::unique_ptr<KeyType> optimizer_form(Experiment& experiment);
std::unique_ptr<KeyType> data_form(Experiment& experiment);
std::unique_ptr<KeyType> entrypoint_form(Experiment& experiment);
std::unique_ptr<KeyType> hyperparameters_form(Experiment& experiment);
std::unique_ptr<KeyType> environment_variables_form(Experiment& experiment);

struct Searcher {
  std::string metric;  // the validation metric that counts; empty: none named
  bool smaller_is_better = true;
  Length max_length;  // at least 1
  bool operator==(const Searcher&) const = default;
};

// "single" is the only value
std::unique_ptr<KeyType> search_form();

inline void declare_keys(Keys& keys, Searcher& s) {
  keys.form(
      {.name = "name",
       .text =
           "single: one training with the values of this file. The key exists for files that Determined also reads.",
       .in_plan = false},
      search_form());
  keys.text(
      {.name = "metric", .text = "The validation metric by which the model is judged.", .examples = R"(["accuracy"])"},
      s.metric);
  keys.boolean({"smaller_is_better", "Whether a smaller value of the metric is the better one."}, s.smaller_is_better);
  keys.length({.name = "max_length",
               .text = "The length of the training: {batches: n}, {records: n} or {epochs: n}.",
               .examples = R"([{"epochs": 2}, {"batches": 1000}, {"records": 60000}])",
               .default_text = "required; with as_is the script's own"},
              s.max_length, 1);
}

inline constexpr int kDefaultRestarts = 5;  // as Determined has it

// How much of the script of `entrypoint` is dtrain's.
enum class AsIs { kOff, kExchange, kRecord };
inline constexpr std::array kAsIs{Word<AsIs>{"off", AsIs::kOff}, Word<AsIs>{"exchange", AsIs::kExchange},
                                  Word<AsIs>{"record", AsIs::kRecord}};

inline constexpr int kMostVirtualRanks = 1024;

struct Experiment {
  std::filesystem::path file;  // as it was given; relative paths inside are relative to its folder
  std::string text;            // the file as it was given, overrides not applied

  std::string name;  // the file's name without its ending where the key is missing
  std::string description;
  std::vector<std::string> labels;
  std::vector<std::string> entrypoint;  // program and arguments, at least one; of a `model:` experiment dtrain-worker
  AsIs as_is = AsIs::kOff;
  std::optional<ModelJob> model;  // set: `model:` was given and no entrypoint
  Resources resources;
  std::string auto_slots_at;              // the place of resources.slots_per_trial: auto: "file:line"; empty: not auto
  std::string elastic_at;                 // the place of resources.elastic, in the same form; empty: not elastic
  std::string on_host_loss_at;            // the place of recovery.on_host_loss; empty: auto
  std::int64_t global_batch_size = 0;     // at least slots_per_trial
  Json hyperparameters = Json::object();  // all of them, global_batch_size too; {type: const, val: x} is x here
  Optimizations optimizations;
  Profiling profiling;
  ProfilingRules profiling_rules;
  Searcher searcher;

  Length min_validation_period;  // 0 batches: only at the end
  bool perform_initial_validation = false;
  bool validates_beside = false;  // by processes of their own, while the training goes on
  std::optional<EarlyStopping> early_stopping;
  Length min_checkpoint_period;  // 0 batches: by the clock
  CheckpointPolicy checkpoint_policy = CheckpointPolicy::kBest;
  CheckpointStorage checkpoint_storage;
  std::optional<std::int64_t> records_per_epoch;
  int max_restarts = kDefaultRestarts;  // after signals or lost hosts; progress sets the count to 0
  Recovery recovery;
  std::int64_t scheduling_unit = 100;  // batches between progress reports and metric reductions
  bool stop_on_non_finite = false;     // a loss or gradient norm that is nan or infinite ends the run; false: it warns
  std::chrono::milliseconds communication_timeout = std::chrono::seconds(600);
  std::optional<comm::Backend> communication_backend;  // empty: auto
  comm::Security communication_security = comm::Security::kProof;
  std::uint64_t experiment_seed = 0;
  int virtual_ranks = 0;         // logical ranks that divide each batch, whatever the number of slots; 0: the slots do
  int virtual_rank_threads = 1;  // threads that compute for a logical rank
  Json data = Json::object();    // for the trial
  InitialWeights initial_weights;
  std::vector<std::pair<std::string, std::string>> environment_variables;
  std::vector<std::pair<std::string, std::string>> cpu_variables;   // only for ranks on CPUs
  std::vector<std::pair<std::string, std::string>> cuda_variables;  // only for ranks on GPUs

  std::vector<Tracker> tracking;  // shown there beside the ranks
  bool share_with_group = false;  // false: nobody but the owner may read the values of these variables

  // Returns the number of ranks that divide each batch.
  int parts_of_batch(int slots) const { return virtual_ranks > 0 ? virtual_ranks : slots; }
  // Returns the mode of the files of a run that hold these values.
  mode_t private_mode() const { return share_with_group ? 0640 : 0600; }
  // Returns all variables for ranks on GPUs, or for ranks on CPUs.
  std::vector<std::pair<std::string, std::string>> variables_of_ranks(bool on_gpus) const;
};

// A key such as "optimizations.gradient_compression", and why its value is refused there, as the key's continuation.
struct Refusal {
  std::string key;
  const char* why;
};
// Returns the keys that ask for something that GPUs do not support. With slot_type: cuda the reader refuses them; with
// auto, the code that decides for GPUs.
std::vector<Refusal> refusals_on_gpus(const Experiment& experiment);

// Returns the keys that ask for something that CPUs do not support.
std::vector<Refusal> refusals_on_cpus(const Experiment& experiment);
// Refuses keys that virtual ranks do not support yet, and numbers that do not fit the number of virtual ranks.
void check_virtual_ranks(Section& root, const Experiment& experiment);
// Why communication.security: tls is refused for connections that dtrain does not make itself.
std::string not_with_tls(const std::string& whose);
inline constexpr const char* kNotForCpus =
    "float16 needs GPUs; use bf16 on CPUs, or train on GPUs with resources.slot_type: cuda";

// Refuses keys that do not go together with validation.beside.
void check_validation_beside(Section& root, const Experiment& experiment);

// Refuses more slots than the batch can be divided among.
void check_elastic(Section& root, const Experiment& experiment);

// Returns the place of a key in the file; empty: it is not given.
std::string place_of(Section& root, const std::string& path);
// Refuses resources.elastic at its place, where nothing changes the number of slots; no effect without the key.
void refuse_elastic(const Experiment& experiment, const std::string& why, const std::string& remedy);
// The same with a recovery.on_host_loss that is not auto, where no keepers of several hosts heed it.
void refuse_on_host_loss(const Experiment& experiment, const std::string& why, const std::string& remedy);

// Sets missing values from `searcher`.
void resolve(Section& root, std::optional<EarlyStopping>& early_stopping, const Searcher& searcher);
// Sets the length of an unchanged script, which its own loop has. Others must give theirs.
void resolve(Section& searcher, Length& max_length, AsIs as_is);

// Conditions across sections, for the reader and the schema.
void check_together(Section& root, const Experiment& experiment);
Json program_or_model();
Json length_needs();
Json what_gpus_support();
Json what_cpus_support();
Json early_stopping_needs();
Json validation_beside_needs();
Json plateau_needs();
Json whole_parameters_need();
Json what_virtual_ranks_support();
Json what_tls_supports();
Json what_acts_on_scripts();

// Who may read a run beside its owner.
inline constexpr std::array kShareWith{Word<bool>{"nobody", false}, Word<bool>{"group", true}};
// How connections between hosts are protected.
inline constexpr std::array kSecurities{Word<comm::Security>{"proof", comm::Security::kProof},
                                        Word<comm::Security>{"tls", comm::Security::kTls}};
// The reaction of the run when a loss or a norm of gradients is not finite.
inline constexpr std::array kOnNonFinite{Word<bool>{"warn", false}, Word<bool>{"stop", true}};

inline void declare_keys(Keys& keys, Experiment& e) {
  keys.text({.name = "name",
             .text = "The name that people see; also part of the name of the run's folder. Default: the file's name.",
             .examples = R"(["fashion-mnist"])",
             .default_text = "the file's name"},
            e.name, kOneLine);
  keys.text({"description", "A description for people."}, e.description);
  keys.texts({.name = "labels", .text = "Labels for people.", .examples = R"([["baseline", "cpu"]])"}, e.labels);
  keys.form(kModel, model_form(e));
  keys.form(kLoss, loss_form(e));
  keys.form(kMetrics, metrics_form(e));
  keys.form(kOptimizer, optimizer_form(e));
  keys.form(kEntrypoint, entrypoint_form(e));
  keys.choice(
      {"as_is",
       "For a Python script that does not call dtrain: dtrain runs it unchanged over torch.distributed, and records "
       "its steps. With exchange, its process groups of gloo and nccl become dtrain's; with record, they stay. off: "
       "the script calls dtrain.init().",
       "`dtrain run --as-is` sets it. [More](torch-distributed.md#unchanged-scripts)."},
      e.as_is, kAsIs);
  keys.form(kHyperparameters, hyperparameters_form(e));
  keys.mapping({"resources", "The slots that the experiment asks for, and its place in the queue."}, e.resources);
  keys.mapping({"optimizations", "How often, how and in which form gradients are exchanged."}, e.optimizations);
  keys.mapping({"profiling",
                "Steps, collectives and the system are always recorded; these keys add a trace of every operator, and "
                "set how the run is judged."},
               [&](Keys& profiling) {
                 declare_keys(profiling, e.profiling);
                 profiling.mapping(
                     {"rules", "Parameters of the rules that judge the run; docs/rules.md describes them.",
                      "[Below](#the-rules-parameters)."},
                     e.profiling_rules, MappingUse::kIfGiven);
               });
  keys.mapping({.name = "searcher",
                .text = "How long to train, and by which metric to judge the model.",
                .default_text = "required, but with as_is"},
               [&](Keys& searcher) {
                 declare_keys(searcher, e.searcher);
                 searcher.when_read([&](Section& section) { resolve(section, e.searcher.max_length, e.as_is); });
               });
  keys.length({.name = "min_validation_period",
               .text = "The length between validations; 0: validate only at the end.",
               .examples = R"([{"epochs": 1}, {"batches": 500}, {"records": 6000}])"},
              e.min_validation_period, 0);
  keys.boolean({"perform_initial_validation", "Validate before the first batch."}, e.perform_initial_validation);
  keys.mapping({"validation", "How a validation is carried out."}, [&](Keys& validation) {
    validation.boolean({"beside",
                        "Whether validations run beside the training: other processes at a low priority evaluate the "
                        "checkpoint just taken, and the training uses the result at the next validation.",
                        "It needs `min_validation_period`. [More](checkpoints.md#validation-beside-training)."},
                       e.validates_beside);
  });
  keys.mapping({.name = "early_stopping",
                .text = "Ends the training before its length when a validation metric no longer improves; null: never.",
                .more = "It needs `min_validation_period`. [More](checkpoints.md#early-stopping)."},
               e.early_stopping);
  keys.length({.name = "min_checkpoint_period",
               .text = "The length between checkpoints; 0: about every minute, every ten minutes where they are "
                       "expensive, unless checkpoint_policy is none.",
               .more = "A run also takes a checkpoint at its end and when it is stopped. [More](checkpoints.md).",
               .examples = R"([{"epochs": 1}, {"batches": 500}, {"records": 6000}])"},
              e.min_checkpoint_period, 0);
  keys.choice({"checkpoint_policy",
               "Which validations are followed by a checkpoint: those whose searcher.metric is among the "
               "checkpoint_storage.save_trial_best best so far, all, or none.",
               "Without `searcher.metric`, `best` is as `none`."},
              e.checkpoint_policy, kCheckpointPolicies);
  keys.mapping({"checkpoint_storage", "Where checkpoints are kept, and how many."}, e.checkpoint_storage);
  keys.integer({"max_restarts",
                "How often the run is started again, without progress in between, after a signal has killed a rank or "
                "a host was lost.",
                "[More](launching.md#restarts)."},
               e.max_restarts, {0, 1000});
  keys.mapping({"recovery", "How a run goes on after a rank has died.", "[More](recovery.md)."}, e.recovery);
  keys.integer({.name = "records_per_epoch",
                .text = "The length of an epoch, for data whose length is not known; null or 0: not given.",
                .more = "For data of known length the key has no effect, and a warning says so.",
                .examples = "[60000]"},
               e.records_per_epoch, {0, kMaxLength});
  keys.when_read([&](Section&) {
    if (e.records_per_epoch == 0) e.records_per_epoch.reset();  // Determined's way to leave it open
  });
  keys.integer({"scheduling_unit", "Batches between progress reports and reductions of metrics."}, e.scheduling_unit,
               {1, kMaxLength});
  keys.choice({"on_non_finite",
               "What happens when the loss or the gradients' norm becomes nan or infinite: with warn the run "
               "continues, with stop it ends with exit code 1.",
               "`warn` warns once, with batch and rank, and counts such batches. Metrics that are not finite are "
               "written as the text `nan`, `inf` or `-inf`, in `metrics.jsonl` and elsewhere."},
              e.stop_on_non_finite, kOnNonFinite);
  keys.mapping({"communication", "How the ranks communicate."}, [&](Keys& communication) {
    double seconds = static_cast<double>(e.communication_timeout.count()) / 1000;
    communication.number({.name = "timeout", .text = "How long any wait for a peer may take.", .unit = "seconds"},
                         seconds, {0.1, 1'000'000});
    e.communication_timeout = std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
    const std::string text = std::string("What carries the messages. auto: ") + comm::kAutoBackendText + ".";
    const std::string more = comm::backend_texts();
    communication.choice({"backend", text.c_str(), more.c_str()}, e.communication_backend, comm::kAutoBackend);
    communication.choice({"security",
                          "What protects the connections between the ranks. With proof, both ends of each connection "
                          "prove that they know the run's secret, and each control message is proven to come from the "
                          "other end. With tls, TLS 1.3 also hides and protects all that is sent.",
                          "Not for connections of MPI and NCCL, so `tls` is refused with them. [More](security.md)."},
                         e.communication_security, kSecurities);
  });
  keys.mapping({"reproducibility", "What makes two runs give the same result."}, [&](Keys& reproducibility) {
    reproducibility.integer({"experiment_seed", "The random seed: runs with the same seed give the same bits."},
                            e.experiment_seed, {0, std::numeric_limits<std::int64_t>::max()});
    reproducibility.integer(
        {"virtual_ranks",
         "The number of logical ranks among which each batch is divided, whatever the number of slots; each slot "
         "computes the parts of some of them, one after the other. So any number of slots up to this one gives the "
         "same bits. 0: each slot is a rank.",
         "[More](reproducibility.md)."},
        e.virtual_ranks, {0, kMostVirtualRanks});
    reproducibility.integer({"virtual_rank_threads",
                             "The threads that compute for a logical rank, on every machine: their number decides "
                             "about the last bits.",
                             "[More](reproducibility.md#threads)."},
                            e.virtual_rank_threads, {1, 1024});
  });
  keys.form(kData, data_form(e));
  keys.form({.name = "initial_weights",
             .text = "What the weights are at the start: the path of a .safetensors file (or of the .index.json of "
                     "several), a checkpoint or a run, relative to this file's folder; or a mapping.",
             .more = "[More](checkpoints.md#starting-from-other-weights).",
             .examples = R"(["runs/0001-first", {"file": "other.safetensors", "strip_prefix": "module."}])",
             .default_text = "none"},
            initial_weights_form(e.initial_weights));
  keys.mapping({"environment", "The environment of the ranks."}, [&](Keys& environment) {
    environment.form(
        {.name = "environment_variables",
         .text =
             "Variables of the ranks: a mapping, or a list of NAME=value. Lists under cpu and cuda are for ranks on "
             "CPUs or GPUs alone; one under rocm is ignored. Names that begin with DTRAIN_ are reserved for dtrain.",
         .more = "Ranks that mpirun or a shell started set them themselves. That is too late for variables that a "
                 "library reads while it is loaded (`OMP_NUM_THREADS`); a warning says so.",
         .examples = R"([{"OMP_NUM_THREADS": 2}, ["OMP_NUM_THREADS=2"]])"},
        environment_variables_form(e));
  });
  keys.form(
      {.name = "tracking",
       .text =
           "The experiment trackers in which the run is shown while it trains: mlflow, wandb and trackio, each with "
           "the address of its server. Without one, the tool's own settings name it. Keys and passwords come from "
           "the tool's own variables or files.",
       .more = "[More](trackers.md).",
       .examples = R"([["trackio"], [{"mlflow": "http://tracking.example:5000"}, "wandb"]])"},
      tracking_form(e.tracking));
  keys.choice(
      {"share_with",
       "Who besides the owner may read the files of a run that hold values of environment variables: nobody, or "
       "the group of the files; group also lets the group read all other files of the run.",
       "[More](security.md#files-of-a-run)."},
      e.share_with_group, kShareWith);
  keys.when_read([&](Section& root) {
    resolve(root, e.early_stopping, e.searcher);
    check_together(root, e);
    if (e.resources.slots_per_trial == 0) e.auto_slots_at = place_of(root, "resources.slots_per_trial");
    if (e.resources.elastic) e.elastic_at = place_of(root, "resources.elastic");
    if (e.recovery.on_host_loss != OnHostLoss::kAuto) e.on_host_loss_at = place_of(root, "recovery.on_host_loss");
  });
  keys.schema_rule(program_or_model);
  keys.schema_rule(length_needs);
  keys.schema_rule(what_gpus_support);
  keys.schema_rule(what_cpus_support);
  keys.schema_rule(early_stopping_needs);
  keys.schema_rule(validation_beside_needs);
  keys.schema_rule(plateau_needs);
  keys.schema_rule(whole_parameters_need);
  keys.schema_rule(what_tls_supports);
  keys.schema_rule(what_acts_on_scripts);
  keys.schema_rule(what_virtual_ranks_support);
}

// `overrides` are the "a.b=c" of --set, in order. `contents`: a file that is read instead of `file`; `file` still
// determines the experiment's name and the folder of relative paths. Empty: `file` itself. Throws ConfigErrors; a file
// that cannot be read is one too.
Experiment read_experiment(const std::filesystem::path& file, std::span<const std::string> overrides = {},
                           const std::filesystem::path& contents = {});

// Returns every value in effect, under the keys of the file, as plan.json shows them: with kHidden in place of the
// values of environment variables.
Json to_json(const Experiment& experiment);

// The values of environment variables may be secrets. Where they would be shown, there is this text.
inline constexpr const char* kHidden = "***";

// True for an override ("a.b=c") that may hold such values.
bool holds_variables(const std::string& override);
// Returns the override as it may be shown: "environment.environment_variables.TOKEN=***".
std::string shown_override(const std::string& override);
// Hides the values in a plan, which another version of dtrain may have written.
void hide_variables(Json& plan);

}  // namespace dtrain::config
