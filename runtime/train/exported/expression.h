// Integer expressions in files of torch.export: sizes ("Mul(Integer(2), Symbol('s77'))") and guards ("L['x'].size()[0]
// == L['mask'].size()[0]"). Both use a part of Python's syntax. Immutable.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace dtrain::exported {

class Expression {
 public:
  // Parses the text; empty: it is not in the supported part of the syntax.
  static std::optional<Expression> parse(const std::string& text);

  // Returns the value of a symbol ("s77") or of a path ("L['x'].size()[0]"); empty: not known.
  using Lookup = std::function<std::optional<std::int64_t>(const std::string& name)>;
  // Returns the value; a comparison is 1 or 0. Empty: a name is not known, a result overflows, a division by 0.
  std::optional<std::int64_t> value(const Lookup& lookup) const;

  // The name, if the expression is one symbol; otherwise empty.
  std::optional<std::string> symbol() const;
  // The names of all symbols and paths in the expression.
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
