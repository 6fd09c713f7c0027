// Makes instructions of the nodes of a graph as the file has it, graphs within nodes included.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "exported/lost_backward.h"
#include "exported/model_json.h"
#include "exported/program.h"

namespace dtrain::exported {

class GraphBuilder {
 public:
  // Adds to `program`, which outlives it.
  explicit GraphBuilder(Program& program) : program_(program) {}

  // The type of the device that the program was exported on: "cpu".
  void set_device_type(const std::string& type) { device_type_ = type; }

  // A new value of this name. Error if there is one.
  Value define(const std::string& name);
  // Error if no earlier instruction, and no input, defines it.
  Value find(const std::string& name) const;
  // An argument that is no operator's: of the outputs.
  Operand operand(const Json& argument) const;

  // Of a graph: its list of nodes, and the shapes of its values. Goes on past nodes that are not supported, so that all
  // are named together.
  void add_nodes(const Json& graph);

  // What is not supported: "operator torchvision::roi_align (in roi_heads)" -> what to do.
  const std::map<std::string, std::string>& unsupported() const { return unsupported_; }
  const LostBackward& lost_backward() const { return lost_backward_; }

 private:
  using Names = std::map<std::string, Value>;

  void add_node(const Json& node);
  // The name of the operator's result if that is its first operand as it is (whole_views.h); empty: it is not.
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
  std::string module_;  // of the node under way
  std::string device_type_ = "cpu";
  int depth_ = 0;
  const Json* shapes_ = nullptr;  // of the values of the graph under way, by name
  int without_gradients_ = 0;     // regions around the node under way
  LostBackward lost_backward_;
};

}  // namespace dtrain::exported
