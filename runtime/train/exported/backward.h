// Finds backward code of the model's author that the file lacks: torch.autograd.Function, backward hooks of modules.
// torch.export writes the operators of forward() alone, so training would use the derivatives of these operators
// instead. The call stacks of the nodes show it: a function's forward() is called without entering a module, and a
// function that returns its input leaves a view_as() that is not in the source. A module that the model does not own,
// such as an activation from a table, looks like a function that is called by another name than apply().
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "exported/model_json.h"
#include "exported/program.h"

namespace dtrain::exported {

class LostBackward {
 public:
  // Examines a node. `without_gradients`: the node is in torch.no_grad().
  void see(const Json& node, bool without_gradients);

  struct Finding {
    std::string what;  // the continuation of "the file"
    std::string remedy;
  };
  // Returns the finding over all nodes seen; empty: no backward code is lost.
  std::optional<Finding> finding() const;
  // Returns the lines that call either a function or a module; the file does not tell which.
  std::vector<std::string> suspects() const { return {suspects_.begin(), suspects_.end()}; }

 private:
  void see_function(const std::vector<CodeLine>& lines, const std::vector<EnteredModule>& modules, bool is_no_module);
  void see_returned_input(const std::vector<CodeLine>& lines, const std::vector<EnteredModule>& modules);
  void add(const std::string& what, const CodeLine& line, const char* remedy);

  std::map<std::string, const char*> found_;  // finding with its line -> remedy
  std::set<std::string> suspects_;
};

// Views of a whole tensor in its own shape, such as x[:, :] and x.view(x.shape). Python skips some of these views; an
// exported program has all of them, and each would cost a step of backward.
//
// True if the operator returns its first operand unchanged for batches of all sizes. `from` and `to`: the descriptions
// of the operand and of the result in the file; null: there is none.
bool is_whole_view(const Instruction& instruction, const Json* from, const Json* to);

}  // namespace dtrain::exported
