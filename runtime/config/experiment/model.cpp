// A `model:` experiment: the keys that take the place of `entrypoint`. They are read together, by the form of `model`,
// for each has an effect beside the others alone.
#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "document/section.h"
#include "dtrain/base/json.h"
#include "dtrain/base/text.h"
#include "dtrain/config/experiment.h"
#include "dtrain/config/model_job.h"
#include "experiment/conditions.h"
#include "experiment/model_data.h"
#include "keys/visitors.h"

namespace dtrain::config {
namespace {

constexpr std::string_view kBeforeK = "top_";
constexpr std::string_view kAfterK = "_accuracy";
constexpr const char* kTopWord = "top_K_accuracy";
constexpr const char* kTopPattern = "^top_([2-9]|[1-9][0-9]{1,5})_accuracy$";
constexpr std::int64_t kMostK = 999'999;

// All but top_K_accuracy.
constexpr std::array kPlainMetrics{std::pair{"accuracy", MetricKind::kAccuracy},
                                   std::pair{"perplexity", MetricKind::kPerplexity}, std::pair{"f1", MetricKind::kF1},
                                   std::pair{"iou", MetricKind::kIou}, std::pair{"auc", MetricKind::kAuc}};

std::vector<std::string> plain_words() {
  std::vector<std::string> words;
  for (const auto& [word, kind] : kPlainMetrics) words.emplace_back(word);
  return words;
}

// Returns the K of top_K_accuracy: 5 for "top_5_accuracy"; empty: the word is no such word.
std::optional<std::int64_t> k_of(std::string_view word) {
  if (!word.starts_with(kBeforeK) || !word.ends_with(kAfterK) || word.size() <= kBeforeK.size() + kAfterK.size())
    return std::nullopt;
  word.remove_prefix(kBeforeK.size());
  word.remove_suffix(kAfterK.size());
  const auto k = to_number<std::int64_t>(word);
  return k && word.front() != '0' && *k >= 2 && *k <= kMostK ? k : std::nullopt;
}

std::string refusal_of(const Value& item) {
  std::vector<std::string> words = plain_words();
  std::string message =
      must_be(join(words, ", ") + " or " + kTopWord + " (K: 2 to " + std::to_string(kMostK) + ")", item);
  const auto near = item.is_scalar() ? nearest(item.text, words) : std::nullopt;
  return near ? message + "; did you mean '" + *near + "'?" : message;
}

// Reads the key `metrics`; a metric that does not fit the loss is reported, too.
std::vector<Metric> read_metrics(Section& root, const Loss& loss) {
  const Value* value = root.find(kMetrics.name);
  if (!value || value->is_null()) return default_metrics(loss);
  std::vector<Metric> metrics;
  if (value->kind != Value::Kind::kList) {
    root.report(*value, kMetrics.name, must_be("a list of metrics", *value));
    return metrics;
  }
  const std::string chosen = dtrain::word_of(loss);
  for (const Value& item : value->items) {
    const auto metric = item.is_scalar() ? metric_named(item.text) : std::nullopt;
    if (!metric) {
      root.report(item, kMetrics.name, refusal_of(item));
      continue;
    }
    if (std::find(metrics.begin(), metrics.end(), *metric) != metrics.end()) {
      root.report(item, kMetrics.name, "names " + metric->word + " twice");
      continue;
    }
    const std::vector<std::string> losses = losses_with(metric->kind);
    if (std::find(losses.begin(), losses.end(), chosen) == losses.end()) {
      root.report(item, kMetrics.name,
                  metric->word + " needs loss " + list_of_choices(losses) + ", not '" + chosen + "'; remove it");
    }
    metrics.push_back(*metric);
  }
  return metrics;
}

// Returns the losses that metrics need, as conditions of a JSON Schema.
std::vector<Json> what_metrics_need() {
  const auto rule = [](const Json& metric, MetricKind kind) {
    const Json losses = losses_with(kind);
    Json condition;
    condition["if"]["required"] = {kMetrics.name};
    condition["if"]["properties"][kMetrics.name] = {{"type", "array"}, {"contains", metric}};
    condition["then"]["properties"][kLoss.name] = {
        {"anyOf", {Json{{"enum", losses}}, Json{{"properties", {{"kind", {{"enum", losses}}}}}, {"type", "object"}}}}};
    return condition;
  };
  std::vector<Json> rules{rule({{"type", "string"}, {"pattern", kTopPattern}}, MetricKind::kTopAccuracy)};
  for (const auto& [word, kind] : kPlainMetrics) rules.push_back(rule({{"const", word}}, kind));
  return rules;
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
        root.refuse(other.name, "has no effect without model: a program of its own chooses this itself");
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
  Json schema(const Key&) const override {
    return {
        {"type", {"array", "null"}},
        {"uniqueItems", true},
        {"items", {{"anyOf", {Json{{"enum", plain_words()}}, Json{{"type", "string"}, {"pattern", kTopPattern}}}}}}};
  }
  std::string values() const override {
    std::string text = "null, or a list of";
    for (const std::string& word : plain_words()) text += " `" + word + "`,";
    return text + " `" + kTopWord + "`";
  }
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
  const Json ctc{{"const", "ctc"}};
  return if_then(is_given("loss", {{"anyOf", {ctc, mapping_with("kind", ctc)}}}),
                 allows({{"data.format", {{"const", "safetensors"}}}}));
}

}  // namespace

std::optional<Metric> metric_named(const std::string& word) {
  if (const auto k = k_of(word)) return Metric{MetricKind::kTopAccuracy, word, *k};
  const auto found = std::ranges::find_if(kPlainMetrics, [&](const auto& plain) { return word == plain.first; });
  if (found == kPlainMetrics.end()) return std::nullopt;
  return Metric{found->second, word, 0};
}

std::vector<std::string> losses_with(MetricKind kind) {
  if (kind == MetricKind::kTopAccuracy || kind == MetricKind::kPerplexity) return {CrossEntropy::kWord};
  return {CrossEntropy::kWord, BinaryCrossEntropy::kWord};
}

std::vector<Metric> default_metrics(const Loss& loss) {
  const std::vector<std::string> losses = losses_with(MetricKind::kAccuracy);
  if (std::find(losses.begin(), losses.end(), dtrain::word_of(loss)) == losses.end()) return {};
  return {*metric_named("accuracy")};
}

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
