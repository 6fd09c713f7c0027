// Makes instructions of the nodes of a graph in the file, including the graphs within nodes.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/jit_type.h>

#include "exported/model_json.h"
#include "exported/program.h"

namespace dtrain::exported {

// Finds backward code of the model's author that the file lacks: torch.autograd.Function, backward hooks of modules.
// torch.export writes the operators of forward() alone, so training would use the derivatives of these operators
// instead. The call stacks of the nodes show it: a function's forward() is called without entering a module, and a
// function that returns its input leaves a view_as() that is not in the source. A module that the model does not own,
// such as an activation from a table, looks like a function that is called by another name than apply().
class LostBackward {
 public:
  // Examines a node. `without_gradients`: the node is in torch.no_grad().
  void see(const Json& node, bool without_gradients);

  struct Problem {
    std::string what;  // the continuation of "the file"
    std::string remedy;
  };
  // Returns the problem over all nodes seen; empty: no backward code is lost.
  std::optional<Problem> problem() const;
  // Returns the lines that call either a function or a module; the file does not tell which.
  std::vector<std::string> suspects() const { return {suspects_.begin(), suspects_.end()}; }

 private:
  void see_function(const std::vector<CodeLine>& lines, const std::vector<EnteredModule>& modules, bool is_no_module);
  void see_returned_input(const std::vector<CodeLine>& lines, const std::vector<EnteredModule>& modules);
  void add(const std::string& what, const CodeLine& line, const char* remedy);

  std::map<std::string, const char*> found_;  // problem with its line -> remedy
  std::set<std::string> suspects_;
};

// Views of a whole tensor in its own shape, such as x[:, :] and x.view(x.shape). Python skips some of these views; an
// exported program has all of them, and each would cost a step of backward.
//
// True if the operator returns its first operand unchanged for batches of all sizes. `from` and `to`: the descriptions
// of the operand and of the result in the file; null: there is none.
bool is_whole_view(const Instruction& instruction, const Json* from, const Json* to);

class GraphBuilder {
 public:
  // Adds instructions to `program`, which outlives the builder.
  explicit GraphBuilder(Program& program) : program_(program) {}

  // The type of the device that the program was exported on: "cpu".
  void set_device_type(const std::string& type) { device_type_ = type; }

  // Returns a new value with this name. Error if the name is in use.
  Value define(const std::string& name);
  // Returns the value with this name. Error if no input and no earlier instruction defines it.
  Value find(const std::string& name) const;
  // Returns the operand for an argument that has no schema, such as an output of a graph.
  Operand operand(const Json& argument) const;

  // Adds the instructions of a graph's nodes. Continues after a node that is not supported, so that one error names all
  // such nodes.
  void add_nodes(const Json& graph);

  // Maps what is not supported, "operator torchvision::roi_align (in roi_heads)", to the remedy.
  const std::map<std::string, std::string>& unsupported() const { return unsupported_; }
  const LostBackward& lost_backward() const { return lost_backward_; }

 private:
  using Names = std::map<std::string, Value>;

  void give_name(const std::string& name, Value value);
  void add_node(const Json& node);
  // Returns the result's name if the operator returns its first operand unchanged (is_whole_view()); otherwise empty.
  std::string name_of_whole_view(const Instruction& instruction, const Json& node) const;
  void add_operator(const Json& node, Instruction instruction);
  void add_number(const Json& node, Instruction instruction);
  void add_region(const Json& node, Instruction begin, std::size_t arguments_before_graph);
  void add_graph(const Json& graph, const std::vector<Operand>& arguments, const Json& outputs);
  void add_results(const Json& outputs, Instruction& instruction);
  void refuse(const std::string& what, const std::string& remedy);
  Instruction begin_instruction(const Json& node);
  const Json& argument_of(const Json& node, std::size_t index) const;

  Program& program_;
  Names names_;
  std::map<std::string, std::string> unsupported_;
  std::string module_;  // the current node's module
  std::string device_type_ = "cpu";
  int depth_ = 0;
  const Json* shapes_ = nullptr;  // of the current graph's values, by name
  int without_gradients_ = 0;     // number of regions around the current node
  LostBackward lost_backward_;
};

// Turns an argument of the file into an operand, whose values `builder` knows. `type`: the type in the schema, without
// a default; null if there is no schema: the argument is not converted. Error, to be put behind the operator's name:
// the argument's kind is not supported or does not fit.
Operand operand_of(const Json& argument, const c10::TypePtr& type, const GraphBuilder& builder);
// Returns the default of an argument that the file leaves out. Error if the argument has no default.
Operand default_operand(const c10::Argument& argument);

}  // namespace dtrain::exported
