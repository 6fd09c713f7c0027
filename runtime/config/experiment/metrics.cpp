#include "experiment/metrics.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "dtrain/base/text.h"
#include "dtrain/config/program_keys.h"

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

}  // namespace

std::optional<Metric> metric_named(const std::string& word) {
  if (const auto k = k_of(word)) return Metric{MetricKind::kTopAccuracy, word, *k};
  const auto found =
      std::find_if(kPlainMetrics.begin(), kPlainMetrics.end(), [&](const auto& one) { return word == one.first; });
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

Json metrics_schema() {
  return {{"type", {"array", "null"}},
          {"uniqueItems", true},
          {"items", {{"anyOf", {Json{{"enum", plain_words()}}, Json{{"type", "string"}, {"pattern", kTopPattern}}}}}}};
}

std::string metric_values() {
  std::string text = "null, or a list of";
  for (const std::string& word : plain_words()) text += " `" + word + "`,";
  return text + " `" + kTopWord + "`";
}

std::vector<Json> what_metrics_need() {
  const auto rule = [](const Json& metric, MetricKind kind) {
    const Json losses = losses_with(kind);
    Json one;
    one["if"]["required"] = {kMetrics.name};
    one["if"]["properties"][kMetrics.name] = {{"type", "array"}, {"contains", metric}};
    one["then"]["properties"][kLoss.name] = {
        {"anyOf", {Json{{"enum", losses}}, Json{{"properties", {{"kind", {{"enum", losses}}}}}, {"type", "object"}}}}};
    return one;
  };
  std::vector<Json> rules{rule({{"type", "string"}, {"pattern", kTopPattern}}, MetricKind::kTopAccuracy)};
  for (const auto& [word, kind] : kPlainMetrics) rules.push_back(rule({{"const", word}}, kind));
  return rules;
}

}  // namespace dtrain::config
