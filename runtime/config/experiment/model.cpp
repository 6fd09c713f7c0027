// A `model:` experiment: the keys that take the place of `entrypoint`. They are read together, by the form of `model`,
// for each has an effect beside the others alone.
#include "dtrain/config/experiment.h"
#include "experiment/metrics.h"
#include "experiment/model_data.h"
#include "keys/key_reader.h"
#include "keys/plan_writer.h"
#include "keys/schema_writer.h"

namespace dtrain::config {
namespace {

void refuse(Section& section, const std::string& key, const std::string& message) {
  if (const Value* value = section.find(key)) section.report(*value, key, message);
}

// Reads a word, or a mapping of a kind and its settings.
LossSettings read_loss(Section& root) {
  LossSettings settings;
  const std::vector<std::string> words = dtrain::words_of<Loss>();
  const Value* value = root.find(kLoss.name);
  if (value && value->is_map()) {
    Section section = root.section(kLoss.name);
    KeyReader::read_all(
        section, [&](Keys& keys) { declare_keys(keys, settings); }, KeyReader::Unselected::kRead);
    return settings;
  }
  if (!value) root.report_missing(kLoss.name, list_of_choices(words));
  settings.loss = choice_named<Loss>(root.choice(kLoss.name, "", words));
  return settings;
}

OptimizerSettings read_optimizer(Section section) {
  OptimizerSettings settings;
  // Without a kind the keys of all kinds are read, so that other errors in them are reported too.
  KeyReader::read_all(
      section, [&](Keys& keys) { declare_keys(keys, settings); }, KeyReader::Unselected::kRead);
  return settings;
}

const TextRule kModelFile{.schema = R"({"minLength": 1})",
                          .good = [](const std::string& text) { return !text.empty(); },
                          .must_be = "the path of a model file"};

void declare_pair(Keys& keys, ModelJob& job) {
  keys.path({.name = "train",
             .text = "Of a pair: the model file to train.",
             .required = "the path of the model file to train"},
            job.file, kModelFile);
  keys.path({.name = "eval",
             .text = "Of a pair: the model file to validate with. Its parameters and buffers are those of train "
                     "that have the same names.",
             .more = "[More](#a-file-for-training-and-one-for-validation).",
             .required = "the path of the model file to validate with"},
            job.eval_file, kModelFile);
}

class ModelForm : public KeyType {
 public:
  explicit ModelForm(Experiment& experiment) : experiment_(experiment) {}

  void read(Section& root, const Key& key) override {
    const Value* value = root.find(key.name);
    for (const Key& other : {kLoss, kMetrics, kOptimizer, kData}) root.find(other.name);
    if (!value) {
      for (const Key& other : {kLoss, kMetrics, kOptimizer})
        refuse(root, other.name, "has no effect without model: a program of its own chooses this itself");
      return;
    }
    if (root.find(kEntrypoint.name)) {
      // The meaning of loss, optimizer and data depends on which of the two is kept.
      return root.report(*value, key.name,
                         "cannot stand beside entrypoint, which names a program; keep one of the two");
    }
    ModelJob job;
    if (value->is_map()) {
      Section pair = root.section(key.name);
      KeyReader::read_all(pair, [&](Keys& keys) { declare_pair(keys, job); });
    } else {
      job.file = required_path(root, key.name, "the path of a model file");
    }
    job.loss = read_loss(root);
    job.metrics = read_metrics(root, job.loss.loss);
    job.optimizer = read_optimizer(root.section(kOptimizer.name));
    job.data = read_model_data(root.section(kData.name));
    experiment_.entrypoint = {"dtrain-worker"};
    experiment_.model = std::move(job);
  }
  Json to_json() const override {
    ModelJob job = *experiment_.model;
    if (job.eval_file.empty()) return job.file.string();
    return PlanWriter::write([&](Keys& keys) { declare_pair(keys, job); });
  }
  Json schema(const Key&) const override {
    ModelJob defaults;
    Json pair = SchemaWriter::write([&](Keys& keys) { declare_pair(keys, defaults); });
    return {{"anyOf", {Json{{"type", {"string", "number", "boolean"}}, {"minLength", 1}}, std::move(pair)}}};
  }
  std::string values() const override { return "path, or mapping"; }
  bool in_effect() const override { return experiment_.model.has_value(); }
  void visit_keys(Keys& keys) override {
    ModelJob defaults;
    declare_pair(keys, defaults);
  }

 private:
  Experiment& experiment_;
};

// A key beside `model`; the form of `model` has read it.
class ModelPartForm : public KeyType {
 public:
  explicit ModelPartForm(Experiment& experiment) : job_(experiment.model) {}
  void read(Section&, const Key&) override {}
  bool in_effect() const override { return job_.has_value(); }

 protected:
  ModelJob shown() const { return job_.value_or(ModelJob()); }

 private:
  const std::optional<ModelJob>& job_;
};

class LossForm : public ModelPartForm {
 public:
  using ModelPartForm::ModelPartForm;
  Json to_json() const override {
    LossSettings settings = shown().loss;
    const std::string word = dtrain::word_of(settings.loss);
    if (settings == LossSettings{choice_named<Loss>(word), "", {}}) return word;
    return PlanWriter::write([&](Keys& keys) { declare_keys(keys, settings); });
  }
  Json schema(const Key&) const override {
    LossSettings defaults;
    return {{"anyOf", {Json{{"enum", dtrain::words_of<Loss>()}}, SchemaWriter::write([&](Keys& keys) {
                         declare_keys(keys, defaults);
                       })}}};
  }
  std::string values() const override { return "a kind, or a mapping of a kind and its settings"; }
  void visit_keys(Keys& keys) override {
    LossSettings defaults;
    declare_keys(keys, defaults);
  }
};

class MetricsForm : public ModelPartForm {
 public:
  using ModelPartForm::ModelPartForm;
  Json to_json() const override {
    Json words = Json::array();
    for (const Metric& metric : shown().metrics) words.push_back(metric.word);
    return words;
  }
  Json schema(const Key&) const override { return metrics_schema(); }
  std::string values() const override { return metric_values(); }
};

class OptimizerForm : public ModelPartForm {
 public:
  using ModelPartForm::ModelPartForm;
  Json to_json() const override {
    ModelJob job = shown();
    return PlanWriter::write([&](Keys& keys) { declare_keys(keys, job.optimizer); });
  }
  Json schema(const Key&) const override {
    OptimizerSettings defaults;
    return SchemaWriter::write([&](Keys& keys) { declare_keys(keys, defaults); });
  }
  std::string values() const override { return "mapping"; }
  void visit_keys(Keys& keys) override {
    OptimizerSettings defaults;
    declare_keys(keys, defaults);
  }
};

class DataForm : public KeyType {
 public:
  explicit DataForm(Experiment& experiment) : experiment_(experiment) {}
  void read(Section& root, const Key& key) override {
    if (!root.find(kModel.name)) experiment_.data = root.free_map(key.name);
  }
  Json to_json() const override {
    if (!experiment_.model) return experiment_.data;
    ModelData data = experiment_.model->data;
    return PlanWriter::write([&](Keys& keys) { declare_keys(keys, data); });
  }
  Json schema(const Key&) const override { return Json::object(); }  // program_or_model() says what it is
  std::string values() const override { return "mapping"; }
  void visit_keys(Keys& keys) override {
    ModelData defaults;
    declare_keys(keys, defaults);
  }

 private:
  Experiment& experiment_;
};

// Returns the condition of check_together() as a schema.
Json what_ctc_needs() {
  return Json::parse(R"({
    "if": {
      "required": ["loss"],
      "properties": {
        "loss": {
          "anyOf": [
            {"const": "ctc"},
            {"type": "object", "required": ["kind"], "properties": {"kind": {"const": "ctc"}}}
          ]
        }
      }
    },
    "then": {"properties": {"data": {"properties": {"format": {"const": "safetensors"}}}}}
  })");
}

}  // namespace

std::vector<ModelFile> files_of(const ModelJob& job) {
  if (job.eval_file.empty()) return {ModelFile{"model", job.file}};
  return {ModelFile{"model.train", job.file}, ModelFile{"model.eval", job.eval_file}};
}

std::unique_ptr<KeyType> model_form(Experiment& experiment) {
  return std::make_unique<ModelForm>(experiment);
}

std::unique_ptr<KeyType> loss_form(Experiment& experiment) {
  return std::make_unique<LossForm>(experiment);
}

std::unique_ptr<KeyType> metrics_form(Experiment& experiment) {
  return std::make_unique<MetricsForm>(experiment);
}

std::unique_ptr<KeyType> optimizer_form(Experiment& experiment) {
  return std::make_unique<OptimizerForm>(experiment);
}

std::unique_ptr<KeyType> data_form(Experiment& experiment) {
  return std::make_unique<DataForm>(experiment);
}

Json program_or_model() {
  Json schema = Json::parse(R"({
    "if": {"required": ["model"]},
    "then": {
      "required": ["loss", "optimizer", "data"],
      "properties": {
        "entrypoint": false,
        "hyperparameters": {"properties": {"global_batch_size": true}, "additionalProperties": false}
      },
      "if": {
        "required": ["data"],
        "properties": {"data": {"required": ["format"], "properties": {"format": {}}}}
      }
    },
    "else": {
      "required": ["entrypoint"],
      "properties": {
        "loss": false,
        "metrics": false,
        "optimizer": false,
        "data": {"type": ["object", "null"], "default": {}, "examples": [{"folder": "/data"}]}
      }
    }
  })");
  schema["then"]["if"]["properties"]["data"]["properties"]["format"]["enum"] = data::formats_of_sequences();
  const Json words = losses_of_sequences();
  schema["then"]["then"]["properties"]["loss"] = {
      {"anyOf", {Json{{"enum", words}}, Json{{"properties", {{"kind", {{"enum", words}}}}}, {"type", "object"}}}}};
  schema["then"]["allOf"] = what_metrics_need();
  schema["then"]["allOf"].push_back(what_ctc_needs());
  ModelData defaults;
  schema["then"]["properties"]["data"] = SchemaWriter::write([&](Keys& keys) { declare_keys(keys, defaults); });
  return schema;
}

}  // namespace dtrain::config
