// What the benchmarks over two hosts (tests/harness/two_hosts.sh) share: running commands, reading steps.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace dtrain::bench {

// Starts all commands at once and waits for them, five minutes at most; Error with what they said when one fails.
// `pin`: the n-th is bound to core n.
void run_together(const std::vector<std::vector<std::string>>& commands, const std::filesystem::path& folder, bool pin,
                  const std::map<std::string, std::string>& environment = {});

// Beside this benchmark.
std::string program(const char* name);

// Two hosts joined by a shaped link; they go with this object.
class TwoHosts {
 public:
  explicit TwoHosts(std::filesystem::path folder) : folder_(std::move(folder)) {}
  ~TwoHosts();
  // Makes them, or changes the link's speed (as tc writes it: "100mbit").
  void shape(const std::string& rate);
  // The command, on host "a" or "b".
  std::vector<std::string> on(const char* host, std::vector<std::string> command) const;
  // The command as one rank on each.
  std::vector<std::string> mpirun(std::vector<std::string> command) const;

 private:
  std::filesystem::path folder_;
  bool up_ = false;
};

struct Step {
  double wall_ms = 0;
  double exposed_ms = 0;   // allreduce_wait
  double backward_ms = 0;  // without what it waited for communication
};
// The steps of a rank, in order.
std::vector<Step> read_steps(const std::filesystem::path& run, int rank);

}  // namespace dtrain::bench
