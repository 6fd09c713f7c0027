#include "exported/written_call.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "dtrain/base/text.h"

namespace dtrain::exported {

namespace {

// A function of torch.nn.functional that takes the mode as an argument, with the argument's position and default.
struct Function {
  std::string_view name;
  std::string_view argument;
  std::size_t place;
  bool is_on_by_default;
};
constexpr std::array kFunctions{
    Function{"dropout", "training", 2, true},        Function{"dropout1d", "training", 2, true},
    Function{"dropout2d", "training", 2, true},      Function{"dropout3d", "training", 2, true},
    Function{"alpha_dropout", "training", 2, false}, Function{"feature_alpha_dropout", "training", 2, false},
    Function{"batch_norm", "training", 5, false},    Function{"instance_norm", "use_input_stats", 5, true},
    Function{"rrelu", "training", 3, false},         Function{"scaled_dot_product_attention", "dropout_p", 4, false}};

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

// Returns the arguments of the call with its bracket at `open`; empty: the call has a string or ends in another line.
std::optional<std::vector<std::string_view>> arguments_at(std::string_view line, std::size_t open) {
  std::vector<std::string_view> arguments;
  std::size_t begin = open + 1;
  int depth = 1;
  for (std::size_t i = begin; i < line.size(); ++i) {
    const char c = line[i];
    if (c == '"' || c == '\'') return std::nullopt;
    if (c == '(' || c == '[' || c == '{') ++depth;
    if (c == ')' || c == ']' || c == '}') --depth;
    if (depth > 0 && !(depth == 1 && c == ',')) continue;
    if (const auto argument = trimmed(line.substr(begin, i - begin)); !argument.empty()) arguments.push_back(argument);
    begin = i + 1;
    if (depth == 0) return arguments;
  }
  return std::nullopt;
}

// Returns the value of the keyword argument, or of the positional argument with this number; empty: not given.
std::string_view argument_of(const std::vector<std::string_view>& arguments, std::string_view keyword,
                             std::size_t number) {
  std::size_t positional = 0;
  std::string_view found;
  for (const std::string_view argument : arguments) {
    const auto equals = argument.find('=');
    const bool named = equals != std::string_view::npos && equals > 0 && argument.substr(equals, 2) != "==" &&
                       std::all_of(argument.begin(), argument.begin() + static_cast<std::ptrdiff_t>(equals),
                                   [](char c) { return is_word(c) || c == ' '; });
    if (named) {
      if (trimmed(argument.substr(0, equals)) == keyword) return trimmed(argument.substr(equals + 1));
    } else if (positional++ == number) {
      found = argument;
    }
  }
  return found;
}

bool is_number(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c == '.' || (c >= '0' && c <= '9'); });
}

}  // namespace

bool is_on_in_both_modes(const std::string& line) {
  const std::string_view text = line;
  bool any = false;
  for (std::size_t open = text.find('('); open != std::string_view::npos; open = text.find('(', open + 1)) {
    std::size_t begin = open;
    while (begin > 0 && (is_word(text[begin - 1]) || text[begin - 1] == '.')) --begin;
    const std::string_view name = text.substr(begin, open - begin);
    const auto dot = name.rfind('.');
    if (dot == std::string_view::npos) continue;
    const std::string_view from = name.substr(0, dot), function = name.substr(dot + 1);
    if (from != "F" && !from.ends_with("functional")) continue;
    const auto* known =
        std::find_if(kFunctions.begin(), kFunctions.end(), [&](const Function& one) { return one.name == function; });
    if (known == kFunctions.end()) continue;
    const auto arguments = arguments_at(text, open);
    if (!arguments) return false;
    const std::string_view value = argument_of(*arguments, known->argument, known->place);
    const bool on = value.empty() ? known->is_on_by_default : value == "True" || is_number(value);
    if (!on) return false;
    any = true;
  }
  return any;
}

}  // namespace dtrain::exported
