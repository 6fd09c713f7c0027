#include "read/metrics_file.h"

#include <simdjson.h>

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>

#include "dtrain/base/text.h"
#include "dtrain/base/untrusted.h"
#include "read/json_fields.h"

namespace dtrain::analysis {
namespace {

using Element = simdjson::dom::element;
using simdjson::SUCCESS;

constexpr std::size_t kMostMetrics = 64;

// How a line was read quickly.
enum class Quick { kAdded, kNothing, kUnusual };

// As number_of(): a number, or a text that stands for one.
std::optional<double> value_of(const Element& element) {
  double number = 0;
  if (element.is_number() && element.get(number) == SUCCESS) return number;
  std::string_view text;
  if (element.get(text) != SUCCESS) return std::nullopt;
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

bool read_integer(const Element& element, std::int64_t& value) {
  return element.get(value) == SUCCESS && value >= -kLargestInteger && value <= kLargestInteger;
}

// False: a value is no number, or a name is there twice.
bool read_values(const simdjson::dom::object& object, MetricsLine& line) {
  line.metrics.clear();
  for (const auto& [name, element] : object) {
    const auto value = value_of(element);
    const bool is_known = std::ranges::find(line.metrics, name, [](const auto& known) {
                            return std::string_view(known.first);
                          }) != line.metrics.end();
    if (!value || is_known || line.metrics.size() == kMostMetrics) return false;
    line.metrics.emplace_back(name, *value);
  }
  return true;
}

class QuickReader {
 public:
  // Reads a line whose members have the types that dtrain writes. All others are unusual, damaged ones too.
  Quick read(std::string_view text, MetricsLine& line) {
    simdjson::dom::object object;
    if (parser_.parse(text.data(), text.size(), /*realloc_if_needed=*/false).get(object) != SUCCESS) {
      return Quick::kUnusual;
    }
    line.batch = line.samples = 0;
    line.time_s = 0;
    line.learning_rate.reset();
    line.gradient_norm.reset();
    std::string_view kind;
    bool has_metrics = false;
    for (const auto& [key, element] : object) {
      bool fits = true;
      if (key == "time") {
        std::string_view time;
        fits = element.get(time) == SUCCESS;
        line.time_s = seconds_of_utc(std::string(time));
      } else if (key == "kind") {
        fits = element.get(kind) == SUCCESS;
      } else if (key == "batch") {
        fits = read_integer(element, line.batch);
      } else if (key == "samples") {
        fits = read_integer(element, line.samples);
      } else if (key == "optimizer_steps") {
        fits = element.is_int64();
      } else if (key == "learning_rate" || key == "gradient_norm") {
        auto& value = key == "learning_rate" ? line.learning_rate : line.gradient_norm;
        value = value_of(element);
        fits = value.has_value();
      } else if (key == "metrics") {
        simdjson::dom::object values;
        fits = has_metrics = element.get(values) == SUCCESS && read_values(values, line);
      } else {
        fits = !element.is_object() && !element.is_array();
      }
      if (!fits) return Quick::kUnusual;
    }
    line.is_training = kind == "training";
    return has_metrics && (line.is_training || kind == "validation") ? Quick::kAdded : Quick::kNothing;
  }

 private:
  simdjson::dom::parser parser_;
};

}  // namespace

profile::Damage read_metrics(const std::filesystem::path& run_dir, CurveReader& reader) {
  static_assert(FileLines::kPadding >= simdjson::SIMDJSON_PADDING);
  QuickReader quick;
  MetricsLine line;
  return profile::read_lines(
      run_dir, profile::RecordFile::kMetrics, [&](std::string_view text, std::int64_t number, profile::Damage& damage) {
        const Quick result = quick.read(text, line);
        if (result == Quick::kAdded) reader.add(line);
        if (result != Quick::kUnusual) return;
        const auto json = profile::parse_record(profile::RecordFile::kMetrics, text, number, damage);
        if (json) reader.add(*json);
      });
}

}  // namespace dtrain::analysis
