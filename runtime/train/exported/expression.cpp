#include "exported/program.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <string_view>

#include "dtrain/base/text.h"

namespace dtrain::exported {
namespace {

constexpr std::size_t kLongestText = 64 * 1024;
constexpr int kDeepestExpression = 100;

using Number = std::optional<std::int64_t>;

// As in Python, the quotient is rounded down, and the remainder has the divisor's sign.
Number divide(std::int64_t a, std::int64_t b) {
  if (b == 0 || (b == -1 && a == std::numeric_limits<std::int64_t>::min())) return std::nullopt;
  return a / b - ((a % b != 0 && (a % b < 0) != (b < 0)) ? 1 : 0);
}

Number remainder(std::int64_t a, std::int64_t b) {
  const Number quotient = divide(a, b);
  if (!quotient) return std::nullopt;
  return a - *quotient * b;
}

Number power(std::int64_t base, std::int64_t exponent) {
  if (exponent < 0 || exponent > 64) return std::nullopt;
  std::int64_t result = 1;
  for (; exponent > 0; --exponent) {
    if (__builtin_mul_overflow(result, base, &result)) return std::nullopt;
  }
  return result;
}

Number combine(const std::string& operation, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  if (operation == "+") return __builtin_add_overflow(a, b, &result) ? Number() : result;
  if (operation == "-") return __builtin_sub_overflow(a, b, &result) ? Number() : result;
  if (operation == "*") return __builtin_mul_overflow(a, b, &result) ? Number() : result;
  if (operation == "//") return divide(a, b);
  if (operation == "%") return remainder(a, b);
  if (operation == "**") return power(a, b);
  if (operation == "max") return std::max(a, b);
  if (operation == "min") return std::min(a, b);
  if (operation == "==") return a == b;
  if (operation == "!=") return a != b;
  if (operation == "<=") return a <= b;
  if (operation == ">=") return a >= b;
  if (operation == "<") return a < b;
  if (operation == ">") return a > b;
  if (operation == "and") return a != 0 && b != 0;
  if (operation == "or") return a != 0 || b != 0;
  return std::nullopt;
}

struct Function {
  const char* name;
  const char* operation;
};
// The functions of sympy and torch.utils._sympy whose arguments are all numbers.
constexpr Function kFunctions[] = {{"Add", "+"},
                                   {"Mul", "*"},
                                   {"FloorDiv", "//"},
                                   {"CleanDiv", "//"},
                                   {"Mod", "%"},
                                   {"PythonMod", "%"},
                                   {"Pow", "**"},
                                   {"PowByNatural", "**"},
                                   {"Max", "max"},
                                   {"Min", "min"},
                                   {"max", "max"},
                                   {"min", "min"},
                                   {"Equality", "=="},
                                   {"Eq", "=="},
                                   {"Unequality", "!="},
                                   {"Ne", "!="},
                                   {"LessThan", "<="},
                                   {"Le", "<="},
                                   {"StrictLessThan", "<"},
                                   {"Lt", "<"},
                                   {"GreaterThan", ">="},
                                   {"Ge", ">="},
                                   {"StrictGreaterThan", ">"},
                                   {"Gt", ">"},
                                   {"And", "and"},
                                   {"Or", "or"}};

}  // namespace

// A recursive-descent parser with Python's precedences, for: or, and, not, comparisons, sums, products, signs, powers,
// names with subscripts and calls.
class ExpressionParser {
 public:
  explicit ExpressionParser(std::string_view text) : text_(text) {}

  using Node = Expression::Node;

  std::optional<Node> all() {
    auto node = binary(0);
    skip();
    if (!node || at_ != text_.size()) return std::nullopt;
    return node;
  }
  std::vector<std::string> names;

 private:
  void skip() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
  }
  bool take(std::string_view token) {
    skip();
    if (!text_.substr(at_).starts_with(token)) return false;
    const std::size_t end = at_ + token.size();
    const bool word = std::isalpha(static_cast<unsigned char>(token.front())) != 0;
    if (word && end < text_.size() && is_word(text_[end])) return false;
    at_ = end;
    return true;
  }
  static bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }
  std::string word() {
    skip();
    const std::size_t begin = at_;
    while (at_ < text_.size() && is_word(text_[at_])) ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }
  std::optional<std::string> quoted() {
    skip();
    if (at_ >= text_.size() || (text_[at_] != '\'' && text_[at_] != '"')) return std::nullopt;
    const std::size_t end = text_.find(text_[at_], at_ + 1);
    if (end == std::string_view::npos) return std::nullopt;
    std::string result(text_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    return result;
  }

  std::optional<Node> binary(std::size_t level) {
    static const std::vector<std::vector<std::string>> kLevels{
        {"or"}, {"and"}, {"==", "!=", "<=", ">=", "<", ">"}, {"+", "-"}, {"//", "*", "%"}};
    if (level == kLevels.size()) return sign();
    const Deeper deeper(depth_);
    if (depth_ > kDeepestExpression) return std::nullopt;
    if (level == kComparisons && take("not")) return of_one("not", binary(level));
    auto left = binary(level + 1);
    while (left) {
      const auto operation = operator_of(kLevels[level]);
      if (!operation) break;
      auto right = binary(level + 1);
      if (!right) return std::nullopt;
      Node node{*operation, 0, {}, {}};
      node.operands.push_back(std::move(*left));
      node.operands.push_back(std::move(*right));
      left = std::move(node);
      if (++operators_ > kMostOperators) return std::nullopt;  // a chain is a tree as deep as it is long
    }
    return left;
  }

  std::optional<std::string> operator_of(const std::vector<std::string>& operations) {
    for (const std::string& operation : operations) {
      skip();
      if (operation == "*" && text_.substr(at_).starts_with("**")) continue;
      if (take(operation)) return operation;
    }
    return std::nullopt;
  }

  std::optional<Node> sign() {
    const Deeper deeper(depth_);
    if (depth_ > kDeepestExpression) return std::nullopt;
    if (take("-")) return of_one("neg", sign());
    auto base = atom();
    if (!base || !take("**")) return base;
    auto exponent = sign();
    if (!exponent) return std::nullopt;
    Node node{"**", 0, {}, {}};
    node.operands.push_back(std::move(*base));
    node.operands.push_back(std::move(*exponent));
    return node;
  }

  static std::optional<Node> of_one(const char* operation, std::optional<Node> operand) {
    if (!operand) return std::nullopt;
    Node node{operation, 0, {}, {}};
    node.operands.push_back(std::move(*operand));
    return node;
  }

  std::optional<Node> atom() {
    if (take("(")) {
      auto inside = binary(0);
      return inside && take(")") ? std::move(inside) : std::nullopt;
    }
    const std::string start = word();
    if (start.empty()) return std::nullopt;
    if (std::isdigit(static_cast<unsigned char>(start.front())) != 0) return number(start);
    if (start == "True" || start == "False") return Node{"number", start == "True", {}, {}};
    skip();
    if (at_ < text_.size() && text_[at_] == '(') return call(start);
    return path(start);
  }

  static std::optional<Node> number(const std::string& digits) {
    const auto value = to_number<std::int64_t>(digits);
    return value ? std::optional(Node{"number", *value, {}, {}}) : std::nullopt;
  }

  Node named(std::string name) {
    names.push_back(name);
    return Node{"name", 0, std::move(name), {}};
  }

  // Parses Symbol('s77', positive=True), Integer(2), Add(a, b, …).
  std::optional<Node> call(const std::string& function) {
    take("(");
    if (function == "Symbol") {
      const auto name = quoted();
      while (name && take(",")) {
        if (word().empty() || !take("=") || word().empty()) return std::nullopt;
      }
      return name && take(")") ? std::optional(named(*name)) : std::nullopt;
    }
    if (function == "Integer") {
      auto value = binary(0);
      return value && take(")") ? std::move(value) : std::nullopt;
    }
    const auto* known = std::find_if(std::begin(kFunctions), std::end(kFunctions),
                                     [&](const Function& candidate) { return function == candidate.name; });
    if (known == std::end(kFunctions)) return std::nullopt;
    std::optional<Node> result;
    do {
      auto operand = binary(0);
      if (!operand) return std::nullopt;
      if (!result) {
        result = std::move(operand);
        continue;
      }
      Node node{known->operation, 0, {}, {}};
      node.operands.push_back(std::move(*result));
      node.operands.push_back(std::move(*operand));
      result = std::move(node);
      if (++operators_ > kMostOperators) return std::nullopt;
    } while (take(","));
    return take(")") ? std::move(result) : std::nullopt;
  }

  // Parses a path such as L['x'][0].size()[1]; its name is the text without spaces.
  std::optional<Node> path(std::string text) {
    while (true) {
      if (take("[")) {
        const auto key = quoted();
        const std::string index = key ? std::string() : word();
        if ((!key && index.empty()) || !take("]")) return std::nullopt;
        text += key ? "['" + *key + "']" : "[" + index + "]";
      } else if (take(".")) {
        const std::string attribute = word();
        if (attribute.empty()) return std::nullopt;
        text += "." + attribute;
        if (take("(")) {
          if (!take(")")) return std::nullopt;
          text += "()";
        }
      } else {
        return named(std::move(text));
      }
    }
  }

  struct Deeper {
    explicit Deeper(int& depth) : depth_(depth) { ++depth_; }
    ~Deeper() { --depth_; }
    int& depth_;
  };

  static constexpr std::size_t kComparisons = 2;  // the level of comparisons in binary(): `not` binds less tightly
  static constexpr int kMostOperators = 1000;
  std::string_view text_;
  std::size_t at_ = 0;
  int depth_ = 0;
  int operators_ = 0;
};

std::optional<Expression> Expression::parse(const std::string& text) {
  if (text.size() > kLongestText) return std::nullopt;
  ExpressionParser parser(text);
  auto root = parser.all();
  if (!root) return std::nullopt;
  Expression expression;
  expression.root_ = std::move(*root);
  expression.names_ = std::move(parser.names);
  return expression;
}

std::optional<std::string> Expression::symbol() const {
  if (root_.operation != "name") return std::nullopt;
  return root_.name;
}

std::optional<std::int64_t> Expression::value(const Lookup& lookup) const {
  return value_of(root_, lookup);
}

std::optional<std::int64_t> Expression::value_of(const Node& node, const Lookup& lookup) {
  if (node.operation == "number") return node.number;
  if (node.operation == "name") return lookup(node.name);
  const Number first = value_of(node.operands[0], lookup);
  if (!first) return std::nullopt;
  if (node.operation == "not") return *first == 0;
  if (node.operation == "neg") return combine("-", 0, *first);
  const Number second = value_of(node.operands[1], lookup);
  if (!second) return std::nullopt;
  return combine(node.operation, *first, *second);
}

}  // namespace dtrain::exported
