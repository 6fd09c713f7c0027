// What the keys of experiment.h itself need: a rule, a type, and the checks across sections.
#include "dtrain/config/experiment.h"
#include "keys/key_reader.h"

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

// Where the batch size stands, in either form.
const Value* batch_size_value(Section& root) {
  const Value* section = root.find(kHyperparameters.name);
  const Entry* entry = section ? section->find(kGlobalBatchSize.name) : nullptr;
  if (!entry) return nullptr;
  const Entry* constant = entry->value.is_map() ? entry->value.find("val") : nullptr;
  return constant ? &constant->value : &entry->value;
}

}  // namespace

const TextRule kSafetensorsFile{.schema = R"({"type": "string", "pattern": "^$|\\.safetensors$"})",
                                .good = [](const std::string& text) { return text.ends_with(".safetensors"); },
                                .must_be = "the path of a .safetensors file"};

std::unique_ptr<KeyType> search_form() {
  return std::make_unique<SearchForm>();
}

void check_together(Section& root, const Experiment& experiment) {
  const int slots = experiment.resources.slots_per_trial;
  const Value* batch_size = batch_size_value(root);
  if (batch_size && experiment.global_batch_size > 0 && experiment.global_batch_size < slots) {
    root.report(*batch_size, join_path(kHyperparameters.name, kGlobalBatchSize.name),
                must_be("at least resources.slots_per_trial, which is " + std::to_string(slots), *batch_size));
  }
  const bool sequences = experiment.model && data::has_sequences(experiment.model->data.format);
  const Value* loss = root.find(kLoss.name);
  if (sequences && loss && !takes_sequences(experiment.model->loss)) {
    root.report(*loss, kLoss.name,
                "must be " + list_of_choices(losses_of_sequences()) + " with data.format " +
                    dtrain::word_of(experiment.model->data.format) + ", not '" +
                    dtrain::word_of(experiment.model->loss) + "'");
  }
}

}  // namespace dtrain::config
