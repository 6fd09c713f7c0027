// The parts that the keys of experiment.h itself need: a rule, a type, lengths, and the checks across sections.
#include <limits>

#include "document/value.h"
#include "dtrain/base/text.h"
#include "dtrain/config/experiment.h"
#include "dtrain/config/resources.h"
#include "experiment/conditions.h"
#include "keys/visitors.h"

namespace dtrain::config {
namespace {

// Determined's word for what dtrain does; its others are searches.
class SearchForm : public KeyType {
 public:
  void read(Section& section, const Key& key) override {
    const Value* name = section.find(key.name);
    if (!name || (name->is_scalar() && name->text == "single")) return;
    section.report(*name, key.name,
                   "must be single, or left out, not " + describe(*name) +
                       ": dtrain does not search hyperparameters; each value is a launch of its own, with --set "
                       "hyperparameters.NAME=VALUE");
  }
  Json to_json() const override { return "single"; }
  Json schema(const Key&) const override { return {{"const", "single"}}; }
  std::string values() const override { return "`single`"; }
};

// Returns the batch size in either form.
const Value* batch_size_value(Section& root) {
  const Value* section = root.find(kHyperparameters.name);
  const Entry* entry = section ? section->find(kGlobalBatchSize.name) : nullptr;
  if (!entry) return nullptr;
  const Entry* constant = entry->value.is_map() ? entry->value.find("val") : nullptr;
  return constant ? &constant->value : &entry->value;
}

}  // namespace

std::unique_ptr<KeyType> search_form() {
  return std::make_unique<SearchForm>();
}

std::vector<std::pair<std::string, std::string>> Experiment::variables_of_ranks(bool on_gpus) const {
  auto variables = environment_variables;
  const auto& more = on_gpus ? cuda_variables : cpu_variables;
  variables.insert(variables.end(), more.begin(), more.end());
  return variables;
}

constexpr const char* kWholeOnGpus =
    "cannot be true on GPUs, where NCCL keeps the memory of whole gradients registered; leave it at auto, and set "
    "sharded_optimizer: true to shard the updates";

std::vector<Refusal> refusals_on_gpus(const Experiment& experiment) {
  std::vector<Refusal> refusals;
  if (experiment.optimizations.sharded_gradients == Switch::kOn)
    refusals.push_back({"optimizations.sharded_gradients", kWholeOnGpus});
  if (experiment.validates_beside)
    refusals.push_back({"validation.beside", "is not supported yet on GPUs; leave it out"});
  return refusals;
}

std::vector<Refusal> refusals_on_cpus(const Experiment& experiment) {
  if (experiment.optimizations.mixed_precision != Precision::kFloat16) return {};
  return {{"optimizations.mixed_precision", kNotForCpus}};
}

std::string not_with_tls(const std::string& whose) {
  return "tls promises that nobody on the path can change data, which the connections of " + whose + " do not give";
}

// The schema also limits how the cores of CPUs can be divided.
Json what_cpus_support() {
  return {{"allOf",
           {if_then(is_given("resources.slot_type", {{"const", "cpu"}}),
                    allows({{"optimizations.mixed_precision", {{"not", {{"enum", {"fp16", "O1"}}}}}}})),
            if_then(is_given("resources.slots_per_trial", {{"const", "auto"}}),
                    allows({{"resources.cores_per_slot", {{"const", "auto"}}},
                            {"optimizations.local_sgd", {{"type", "null"}}}}))}}};
}

Json what_gpus_support() {
  return if_then(is_given("resources.slot_type", {{"const", "cuda"}}),
                 allows({{"optimizations.sharded_gradients", {{"enum", {"auto", false, "false"}}}}}));
}

// Returns the condition of check_together() as a schema.
Json early_stopping_needs() {
  const Json metric = is_given("metric", {{"minLength", 1}});
  Json needs =
      is_given("min_validation_period", {{"type", "object"}, {"additionalProperties", {{"exclusiveMinimum", 0}}}});
  needs["anyOf"] = {allows({{"early_stopping", metric}}), allows({{"searcher", metric}})};
  return if_then(is_given("early_stopping", {{"type", "object"}}), std::move(needs));
}

// Returns the same for validation.beside.
Json validation_beside_needs() {
  const Json period =
      is_given("min_validation_period", {{"type", "object"}, {"additionalProperties", {{"exclusiveMinimum", 0}}}});
  const Json supported = allows({{"checkpoint_policy", {{"not", {{"const", "none"}}}}},
                                 {"optimizations.local_sgd", {{"type", "null"}}},
                                 {"reproducibility.virtual_ranks", {{"const", 0}}},
                                 {"resources.slot_type", {{"not", {{"const", "cuda"}}}}}});
  return if_then(is_given("validation", mapping_with("beside", {{"const", true}})), {{"allOf", {period, supported}}});
}

void check_validation_beside(Section& root, const Experiment& experiment) {
  if (!experiment.validates_beside) return;
  const auto refuse = [&](bool asked, const std::string& why) {
    if (asked) root.refuse("validation.beside", why);
  };
  refuse(experiment.min_validation_period.count == 0, "has no effect without min_validation_period");
  refuse(experiment.checkpoint_policy == CheckpointPolicy::kNone,
         "evaluates the checkpoint of each validation, and checkpoint_policy is none; use best or all");
  refuse(experiment.optimizations.local_sgd.has_value(),
         "is not supported yet with optimizations.local_sgd; leave one of both out");
  refuse(experiment.virtual_ranks > 0,
         "is not supported yet with reproducibility.virtual_ranks; leave one of both out");
}

// Returns the same for optimizer.reduce_on_plateau.
Json plateau_needs() {
  Json needs{{"required", {"min_validation_period"}}};
  needs.update(allows({{"searcher", {{"required", {"metric"}}}}}));
  return if_then(is_given("optimizer", mapping_with("reduce_on_plateau", {{"type", "object"}})), std::move(needs));
}

// Updates of whole parameters cannot be sharded.
Json whole_parameters_need() {
  const Json not_true{{"enum", {"auto", false, "false"}}};
  return if_then(
      is_given("optimizer", mapping_with("kind", {{"enum", {"muon"}}})),
      allows({{"optimizations.sharded_optimizer", not_true}, {"optimizations.sharded_gradients", not_true}}));
}

// What acts on the engine's loop, and so has no effect on a script with a loop and an optimizer of its own.
constexpr const char* kOfTheLoop[] = {"model",
                                      "data",
                                      "initial_weights",
                                      "early_stopping",
                                      "min_validation_period",
                                      "perform_initial_validation",
                                      "validation",
                                      "min_checkpoint_period",
                                      "checkpoint_policy",
                                      "checkpoint_storage",
                                      "searcher.max_length",
                                      "records_per_epoch",
                                      "resources.elastic",
                                      "on_non_finite",
                                      "reproducibility"};

Json is_unchanged() {
  return is_given("as_is", {{"enum", {"exchange", "record"}}});
}

Json what_acts_on_scripts() {
  Json allowed;
  for (const char* const key : kOfTheLoop) allowed.merge_patch(allows({{key, false}}));
  allowed["properties"]["optimizations"] = {{"propertyNames", {{"enum", {"matmul", "operators"}}}}};
  allowed["properties"]["entrypoint"] = Json::parse(R"json({
    "anyOf": [
      {"type": "string", "pattern": "^\\s*['\"]?[^\\s'\"]*\\.py['\"]?(\\s|$)"},
      {"type": "array", "items": [{"type": "string", "pattern": "\\.py$"}]}
    ]
  })json");
  return if_then(is_unchanged(), std::move(allowed));
}

// Returns the condition of resolve() as a schema.
Json length_needs() {
  return if_then({{"not", is_unchanged()}}, is_given("searcher", mapping_with("max_length", Json::object())));
}

Json what_tls_supports() {
  Json supported = allows({{"communication.backend", {{"not", {{"enum", {"mpi", "hierarchical"}}}}}}});
  supported.update(if_then(is_given("resources.slot_type", {{"const", "cuda"}}),
                           allows({{"resources.slots_per_trial", {{"const", 1}}}})));
  return if_then(is_given("communication", mapping_with("security", {{"const", "tls"}})), std::move(supported));
}

std::string place_of(Section& root, const std::string& path) {
  const Value* value = root.find_at(path);
  return value ? root.collector().place(value->at) : std::string();
}

void resolve(Section& root, std::optional<EarlyStopping>& early_stopping, const Searcher& searcher) {
  if (!early_stopping) return;
  if (early_stopping->metric.empty()) early_stopping->metric = searcher.metric;
  if (early_stopping->metric == searcher.metric && !root.find_at("early_stopping.smaller_is_better")) {
    early_stopping->smaller_is_better = searcher.smaller_is_better;
  }
}

void resolve(Section& searcher, Length& max_length, AsIs as_is) {
  if (as_is != AsIs::kOff) {
    max_length = {LengthUnit::kEpochs, kEpochsOfScripts};
  } else if (!searcher.find("max_length")) {
    searcher.report_missing("max_length", kLengthForms);
  }
}

const char* const kPlacesOfTransforms[] = {"data.training.transforms", "data.validation.transforms"};

// A loss must not count the targets of padding.
void check_padding(Section& root, const LossSettings& loss, const ModelData& data) {
  const auto* const cross_entropy = std::get_if<CrossEntropy>(&loss.loss);
  const Value* kind = root.find(kLoss.name);
  if (kind && kind->is_map()) kind = root.find_at("loss.kind");
  const bool counts = cross_entropy && kind && kind->is_scalar() && kind->text == CrossEntropy::kWord;
  if (!counts || !data::has_sequences(data.format)) return;
  const std::vector<TransformStep>* const lists[] = {&data.transforms.training, &data.transforms.validation};
  for (std::size_t i = 0; i < std::size(lists); ++i) {
    const std::optional<std::int64_t> target = data::pad_target_of(transforms_of(*lists[i]));
    if (!target || cross_entropy->ignore_index == target) continue;
    root.refuse(kPlacesOfTransforms[i], "fill padding with the target " + std::to_string(*target) +
                                            ", which loss cross_entropy counts; write " +
                                            "loss: {kind: cross_entropy, ignore_index: " + std::to_string(*target) +
                                            "}");
  }
}

// forward() gets the same in training and in validation.
void check_more_inputs(Section& root, const ModelData& data) {
  if (!data.validation) return;
  const std::vector<std::string> training = data::more_inputs_of(transforms_of(data.transforms.training));
  const std::vector<std::string> validation = data::more_inputs_of(transforms_of(data.transforms.validation));
  if (training == validation) return;
  const auto text = [](const std::vector<std::string>& names) {
    return names.empty() ? std::string("nothing") : join_with_and(names);
  };
  root.refuse("data.validation", "gives forward() " + text(validation) +
                                     " after the features, and data.training gives " + text(training) +
                                     ": give the transforms of both the same");
}

bool acts_on_scripts(const std::string& optimization) {
  return optimization == "matmul" || optimization == "operators";
}

void refuse_beside_as_is(Section& root, AsIs as_is) {
  const std::string why =
      std::string("has no effect on an unchanged script (as_is: ") + word_of(kAsIs, as_is) +
      "), which has a loop and an optimizer of its own; leave it out, or call dtrain.init() in the script";
  for (const char* const key : kOfTheLoop) {
    if (root.find_at(key)) root.refuse(key, why);
  }
  const Value* optimizations = root.find_at("optimizations");
  if (!optimizations || !optimizations->is_map()) return;
  for (const Entry& entry : optimizations->entries) {
    if (!acts_on_scripts(entry.key)) root.refuse("optimizations." + entry.key, why);
  }
}

void check_together(Section& root, const Experiment& experiment) {
  if (experiment.as_is != AsIs::kOff) {
    const std::vector<std::string>& words = experiment.entrypoint;
    if (words.empty() || !words.front().ends_with(".py")) {
      root.refuse("as_is", "is for a Python script: entrypoint must be a file that ends in .py");
    }
    refuse_beside_as_is(root, experiment.as_is);
  }
  constexpr const char* kNoValidation =
      "has no effect without min_validation_period: it is decided after each validation";
  const Optimizations& optimizations = experiment.optimizations;
  const int slots = experiment.resources.slots_per_trial;
  const Value* batch_size = batch_size_value(root);
  if (batch_size && experiment.global_batch_size > 0 && experiment.global_batch_size < slots) {
    root.report(*batch_size, join_path(kHyperparameters.name, kGlobalBatchSize.name),
                must_be("at least resources.slots_per_trial, which is " + std::to_string(slots), *batch_size));
  }
  check_elastic(root, experiment);
  if (slots == 0 && optimizations.local_sgd) {
    const Value& value = *root.find_at("resources.slots_per_trial");
    root.report(
        value, "resources.slots_per_trial",
        must_be("a number with optimizations.local_sgd, for the number of ranks changes what is trained", value));
  }
  const bool on_gpus = experiment.resources.slot_type == SlotType::kCuda;
  if (on_gpus) {
    for (const auto& [key, why] : refusals_on_gpus(experiment)) root.refuse(key, why);
  }
  if (experiment.resources.slot_type == SlotType::kCpu) {
    for (const auto& [key, why] : refusals_on_cpus(experiment)) root.refuse(key, why);
  }
  if (experiment.communication_security == comm::Security::kTls) {
    const std::optional<comm::Backend>& backend = experiment.communication_backend;
    if (backend && comm::needs_mpi(*backend)) {
      root.refuse("communication.security",
                  not_with_tls("MPI") + "; communication.backend is " + dtrain::word_of(*backend));
    }
    if (on_gpus && slots != 1)
      root.refuse("communication.security", not_with_tls("NCCL") + "; resources.slot_type is cuda");
  }
  check_virtual_ranks(root, experiment);
  check_validation_beside(root, experiment);
  if (experiment.early_stopping) {
    if (experiment.early_stopping->metric.empty())
      root.refuse("early_stopping", "names no metric; give early_stopping.metric or searcher.metric");
    if (experiment.min_validation_period.count == 0) root.refuse("early_stopping", kNoValidation);
  }
  if (!experiment.model) return;
  const ModelJob& job = *experiment.model;
  if (job.optimizer.reduce_on_plateau) {
    constexpr const char* kPlateau = "optimizer.reduce_on_plateau";
    if (experiment.searcher.metric.empty()) root.refuse(kPlateau, "has no metric to watch; give searcher.metric");
    if (experiment.min_validation_period.count == 0) root.refuse(kPlateau, kNoValidation);
  }
  if (updates_whole_parameters(job.optimizer.optimizer)) {
    const std::string why = std::string("cannot be true with optimizer.kind ") +
                            dtrain::word_of(job.optimizer.optimizer) +
                            ", which updates whole parameters; leave it at auto";
    if (optimizations.sharded_optimizer == Switch::kOn) root.refuse("optimizations.sharded_optimizer", why);
    if (optimizations.sharded_gradients == Switch::kOn) root.refuse("optimizations.sharded_gradients", why);
  }
  check_padding(root, job.loss, job.data);
  check_more_inputs(root, job.data);
  const std::string format = dtrain::word_of(job.data.format), kind = dtrain::word_of(job.loss.loss);
  if (data::has_sequences(job.data.format) && !takes_sequences(job.loss.loss)) {
    root.refuse(kLoss.name, "must be " + list_of_choices(losses_of_sequences()) + " with data.format " + format +
                                ", not '" + kind + "'");
  }
  const Value* given = root.find_at("data.format");
  const bool is_chosen = given && given->is_scalar() && given->text == format;
  if (is_chosen && !tensors_of(job.loss.loss).empty() && format != data::Safetensors::kWord) {
    root.refuse(kLoss.name,
                kind + " needs data.format safetensors, which has tensors for the lengths, not '" + format + "'");
  }
}

std::string to_string(const Length& length) {
  const char* unit = length.unit == LengthUnit::kBatches   ? "batch"
                     : length.unit == LengthUnit::kRecords ? "record"
                                                           : "epoch";
  return count_of(length.count, unit);
}

std::int64_t in_batches(const Length& length, std::int64_t global_batch_size, std::int64_t batches_per_epoch) {
  if (length.unit == LengthUnit::kBatches) return length.count;
  if (length.unit == LengthUnit::kRecords) {
    return length.count / global_batch_size + (length.count % global_batch_size != 0 ? 1 : 0);
  }
  std::int64_t batches = 0;
  const bool overflow = __builtin_mul_overflow(length.count, batches_per_epoch, &batches);
  return overflow ? std::numeric_limits<std::int64_t>::max() : batches;
}

}  // namespace dtrain::config
