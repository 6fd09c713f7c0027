// Code for the backward pass that the model's author has written: torch.autograd.Function, backward hooks of modules.
// torch.export writes the operators of forward() alone, so the derivatives of these operators would stand in its place.
// The call stacks of the nodes tell: a function's forward() is called where no module is entered, and a function that
// returns its input leaves a view_as() that nobody has written.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "exported/model_json.h"
#include "exported/node_source.h"

namespace dtrain::exported {

class LostBackward {
 public:
  // `without_gradients`: the node stands within torch.no_grad().
  void see(const Json& node, bool without_gradients);

  struct Finding {
    std::string what;  // the continuation of "the file"
    std::string remedy;
  };
  // Of all nodes seen; empty: nothing was found.
  std::optional<Finding> finding() const;

 private:
  void see_function(const std::vector<CodeLine>& lines, const std::vector<EnteredModule>& modules);
  void see_returned_input(const std::vector<CodeLine>& lines, const std::vector<EnteredModule>& modules);
  void add(const std::string& what, const CodeLine& line, const char* remedy);

  std::map<std::string, const char*> found_;  // what and where -> what to do
};

}  // namespace dtrain::exported
