// Expressions of whole numbers as torch.export writes them into a file: sizes ("Mul(Integer(2), Symbol('s77'))") and
// guards ("L['x'].size()[0] == L['mask'].size()[0]"). Both are a part of Python's syntax. Immutable.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace dtrain::exported {

class Expression {
 public:
  // Empty if the text is none that is understood here.
  static std::optional<Expression> parse(const std::string& text);

  // The value of "s77", a symbol, or of "L['x'].size()[0]", a path. Empty: it is not known.
  using Lookup = std::function<std::optional<std::int64_t>(const std::string& name)>;
  // A comparison is 1 or 0. Empty if a name is not known, or where a result is none: an overflow, a division by 0.
  std::optional<std::int64_t> value(const Lookup& lookup) const;

  // The name alone, if the expression is a symbol.
  std::optional<std::string> symbol() const;
  // All names.
  const std::vector<std::string>& names() const { return names_; }

 private:
  friend class ExpressionParser;
  struct Node {
    std::string operation;  // "name", "number", or an operator
    std::int64_t number = 0;
    std::string name;
    std::vector<Node> operands;
  };
  static std::optional<std::int64_t> value_of(const Node& node, const Lookup& lookup);

  Node root_;
  std::vector<std::string> names_;
};

}  // namespace dtrain::exported
