// Code for the backward pass that the model's author has written: torch.autograd.Function, backward hooks of modules.
// torch.export writes the operators of forward() alone, so the derivatives of these operators would stand in its place.
// The call stacks of the nodes tell: a function's forward() is called where no module is entered, and a function that
// returns its input leaves a view_as() that nobody has written. A module that the model does not own, such as an
// activation from a table, looks like a function that is called by another name than apply().
#pragma once

#include <map>
#include <optional>
#include <set>
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
  // Lines that call a function or a module, and which of them is not known.
  std::vector<std::string> suspects() const { return {suspects_.begin(), suspects_.end()}; }

 private:
  void see_function(const std::vector<CodeLine>& lines, const std::vector<EnteredModule>& modules, bool is_no_module);
  void see_returned_input(const std::vector<CodeLine>& lines, const std::vector<EnteredModule>& modules);
  void add(const std::string& what, const CodeLine& line, const char* remedy);

  std::map<std::string, const char*> found_;  // what and where -> what to do
  std::set<std::string> suspects_;
};

}  // namespace dtrain::exported
