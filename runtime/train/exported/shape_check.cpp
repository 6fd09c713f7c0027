#include "exported/runner.h"

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"

namespace dtrain::exported {
namespace {

constexpr std::size_t kMostKnown = 64;  // number of remembered shapes
constexpr const char* kDynamic =
    "export it with dynamic_shapes, which says which sizes may change (docs/exporting.md), or give it data of the "
    "shape that it was exported with";
constexpr const char* kDynamicSamples =
    "export it with dynamic_shapes, which says that the number of samples may change (docs/exporting.md), or choose "
    "hyperparameters.global_batch_size and the number of samples so that all batches fit";
// torch.export takes a size of 1 in the example for a constant, even if dynamic_shapes declares it dynamic.
constexpr const char* kMoreSamples =
    "export it with an example of 2 samples or more, and with dynamic_shapes (docs/exporting.md): torch.export takes a "
    "size of 1 for a constant";

std::string named(const Input& input) {
  return "the model's input '" + input.name + "'";
}

std::string range_text(const Range& range) {
  if (!range.most) return "at least " + std::to_string(range.least);
  return std::to_string(range.least) + " to " + std::to_string(*range.most);
}

// A program exported for at least 2 elements also works with 1 or 0, according to torch.export.
bool is_within(const Range& range, std::int64_t size) {
  return (size >= range.least || range.least <= 2) && (!range.most || size <= *range.most);
}

}  // namespace

void ShapeCheck::check_samples(std::int64_t samples) const {
  std::map<std::string, std::string> of_symbol;  // symbol -> an input whose first dimension it is
  for (const Input& input : program_.inputs) {
    if (input.shape.empty()) continue;
    if (const auto* fixed = std::get_if<std::int64_t>(&input.shape[0])) {
      if (samples == *fixed) continue;
      throw Error("its input '" + input.name + "' was exported for batches of " + count_of(*fixed, "sample") + " alone",
                  *fixed == 1 ? kMoreSamples : kDynamicSamples);
    }
    if (const auto symbol = std::get<Expression>(input.shape[0]).symbol()) of_symbol.emplace(*symbol, input.name);
  }
  for (const auto& [symbol, range] : program_.ranges) {
    const auto found = of_symbol.find(symbol);
    if (found == of_symbol.end() || is_within(range, samples)) continue;
    throw Error("its input '" + found->second + "' was exported for batches of " + range_text(range) + " samples",
                kDynamicSamples);
  }
  const auto value_of = [&](const std::string& name) -> std::optional<std::int64_t> {
    const bool is_samples =
        of_symbol.contains(name) || std::any_of(program_.inputs.begin(), program_.inputs.end(),
                                                [&](const Input& input) { return name == input.path + ".size()[0]"; });
    return is_samples ? std::optional(samples) : std::nullopt;
  };
  for (const Guard& guard : program_.guards) {
    const auto holds = guard.condition.value(value_of);
    if (holds && *holds == 0) throw Error("it was exported for batches with " + guard.text, kDynamicSamples);
  }
}

void ShapeCheck::check(std::span<const at::Tensor> inputs) {
  sizes_.clear();
  for (const at::Tensor& input : inputs) {
    sizes_.push_back(input.dim());
    sizes_.push_back(static_cast<std::int64_t>(input.scalar_type()));
    sizes_.insert(sizes_.end(), input.sizes().begin(), input.sizes().end());
  }
  if (std::find(known_.rbegin(), known_.rend(), sizes_) != known_.rend()) return;
  check_new(inputs);
  if (known_.size() == kMostKnown) known_.erase(known_.begin());
  known_.push_back(sizes_);
}

void ShapeCheck::check_new(std::span<const at::Tensor> inputs) const {
  // Symbol -> its size, and the place of that size for errors.
  std::map<std::string, std::pair<std::int64_t, std::string>> symbols;
  const auto of_symbol = [&](const std::string& name) -> std::optional<std::int64_t> {
    const auto found = symbols.find(name);
    return found == symbols.end() ? std::nullopt : std::optional(found->second.first);
  };
  const auto place = [&](std::size_t i, std::size_t d) {
    std::ostringstream text;
    text << named(program_.inputs[i]) << " is of shape " << inputs[i].sizes() << ", and its dimension " << d;
    return text.str();
  };
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Input& input = program_.inputs[i];
    if (inputs[i].scalar_type() != input.type) {
      throw Error(named(input) + " is of type " + std::string(c10::getDtypeNames(inputs[i].scalar_type()).first) +
                      ", but the model was exported for " + std::string(c10::getDtypeNames(input.type).first),
                  "export it with an example of the type that the data has, or convert the data");
    }
    if (inputs[i].dim() != static_cast<std::int64_t>(input.shape.size())) {
      std::ostringstream text;
      text << named(input) << " is of shape " << inputs[i].sizes() << ", but the model was exported for "
           << input.shape.size() << " dimensions";
      throw Error(text.str(), "give it data of the shape that it was exported with");
    }
    for (std::size_t d = 0; d < input.shape.size(); ++d) {
      const std::int64_t size = inputs[i].size(static_cast<std::int64_t>(d));
      if (const auto* fixed = std::get_if<std::int64_t>(&input.shape[d])) {
        if (size != *fixed) {
          throw Error(place(i, d) + " was exported as " + std::to_string(*fixed) + " alone",
                      *fixed == 1 && d == 0 ? kMoreSamples : kDynamic);
        }
        continue;
      }
      const auto symbol = std::get<Expression>(input.shape[d]).symbol();
      if (!symbol) continue;
      const auto [known, is_new] = symbols.emplace(*symbol, std::pair(size, place(i, d)));
      if (!is_new && known->second.first != size) {
        throw Error(place(i, d) + " must be as long as that of another input, " + std::to_string(known->second.first),
                    "give both inputs the same size, as they had when the model was exported");
      }
    }
  }
  for (const auto& [symbol, range] : program_.ranges) {
    const auto found = symbols.find(symbol);
    if (found == symbols.end()) continue;
    const std::int64_t size = found->second.first;
    if (!is_within(range, size)) throw Error(found->second.second + " must be " + range_text(range), kDynamic);
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    for (std::size_t d = 0; d < program_.inputs[i].shape.size(); ++d) {
      const auto* expression = std::get_if<Expression>(&program_.inputs[i].shape[d]);
      const auto size = expression ? expression->value(of_symbol) : std::nullopt;
      if (size && *size != inputs[i].size(static_cast<std::int64_t>(d)))
        throw Error(place(i, d) + " must be " + std::to_string(*size), kDynamic);
    }
  }
  const auto of_path = [&](const std::string& name) -> std::optional<std::int64_t> {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const std::string start = program_.inputs[i].path + ".size()[";
      if (!name.starts_with(start) || !name.ends_with("]")) continue;
      const std::string digits = name.substr(start.size(), name.size() - start.size() - 1);
      const int dimension = to_number<int>(digits).value_or(-1);
      if (dimension >= 0 && dimension < inputs[i].dim()) return inputs[i].size(dimension);
    }
    return of_symbol(name);
  };
  for (const Guard& guard : program_.guards) {
    const auto holds = guard.condition.value(of_path);
    if (holds && *holds == 0) {
      std::vector<std::string> shapes;
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        std::ostringstream text;
        text << "'" << program_.inputs[i].name << "' " << inputs[i].sizes();
        shapes.push_back(text.str());
      }
      throw Error(
          "the model was exported for batches with " + guard.text + ", but the shapes are " + join(shapes, ", "),
          kDynamic);
    }
  }
}

}  // namespace dtrain::exported
