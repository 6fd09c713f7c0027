// PET_*: the variables by which torchrun can be told its options. Kubeflow's TrainJob and PyTorchJob set them in each
// pod.
#include <algorithm>
#include <cctype>

#include "dtrain/base/error.h"
#include "dtrain/rank/environment.h"
#include "variable_family.h"

namespace dtrain::run {
namespace {

constexpr const char* kNodes = "PET_NNODES";
constexpr const char* kRanksPerNode = "PET_NPROC_PER_NODE";

bool is_number(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

// "2", or "2:2"; an elastic job has two numbers.
int read_nodes(const Variables& variables, const Family& family) {
  const std::string& text = family.text(kNodes);
  const auto colon = text.find(':');
  if (colon == std::string::npos) return family.number(kNodes, 1, 100'000);
  if (text.substr(0, colon) != text.substr(colon + 1)) {
    throw ConfigError("environment: PET_NNODES=" + text + " lets the number of hosts change, which is not supported",
                      "give one number");
  }
  Variables plain = variables;
  plain[kNodes] = text.substr(0, colon);
  return Family(plain, kNodes, "a TrainJob").number(kNodes, 1, 100'000);
}

}  // namespace

std::optional<NodeEnvironment> read_node_environment(const Variables& variables) {
  if (!find(variables, kNodes)) return std::nullopt;
  const Family family(variables, kNodes, "a TrainJob");
  NodeEnvironment node;
  node.nodes = read_nodes(variables, family);
  const std::string* const per_node = find(variables, kRanksPerNode);
  if (per_node && is_number(*per_node)) node.ranks_here = family.number(kRanksPerNode, 1, 100'000);
  if (node.nodes == 1) return node;
  node.rank = family.number("PET_NODE_RANK", 0, node.nodes - 1);
  node.master.name = family.text("PET_MASTER_ADDR");
  node.master.port = static_cast<std::uint16_t>(family.number("PET_MASTER_PORT", 1, 65'535));
  return node;
}

}  // namespace dtrain::run
