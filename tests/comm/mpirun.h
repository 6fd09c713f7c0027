// Starts mpi_rank_program with mpirun, here or on the two hosts of harness/two_hosts.sh, and collects what its ranks
// say.
#pragma once

#include <cstdio>
#include <map>
#include <memory>
#include <sstream>
#include <string>

#include <sys/wait.h>

namespace dtrain::test {

struct MpirunOutcome {
  int exit_code = -1;
  std::map<int, std::string> ranks;  // "ok" or the text of the error, by rank
  std::string output;                // all of it
};

inline MpirunOutcome run_command(const std::string& command) {
  MpirunOutcome outcome;
  FILE* const pipe = ::popen((command + " 2>&1").c_str(), "r");
  if (!pipe) return outcome;
  char buffer[4096];
  for (std::size_t got = 0; (got = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) outcome.output.append(buffer, got);
  const int status = ::pclose(pipe);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  std::istringstream lines(outcome.output);
  for (std::string line; std::getline(lines, line);) {
    int rank = -1;
    int text = 0;
    if (std::sscanf(line.c_str(), "RANK %d %n", &rank, &text) == 1 && text > 0) {
      outcome.ranks[rank] = line.substr(static_cast<std::size_t>(text));
    }
  }
  return outcome;
}

// `what`: the program's arguments, as the shell reads them.
inline MpirunOutcome run_ranks_with_mpirun(int ranks, const std::string& what) {
  return run_command("timeout -k 5 180 mpirun --allow-run-as-root --oversubscribe --bind-to none -np " +
                     std::to_string(ranks) + " " + DTRAIN_BINARY_DIR + "/tests/mpi_rank_program " + what);
}

// The same on two hosts, `a` ranks on the first and `b` on the second, placed by mpirun's `options`.
inline MpirunOutcome run_ranks_on_two_hosts(const std::string& rate, int a, int b, const std::string& options,
                                            const std::string& what) {
  const std::string bed = std::string(DTRAIN_SOURCE_DIR) + "/tests/harness/two_hosts.sh";
  return run_command("timeout -k 5 240 " + bed + " with " + rate + " sh -c '" + bed +
                     " mpirun $TWO_HOSTS --host nodea:" + std::to_string(a) + ",nodeb:" + std::to_string(b) + " -np " +
                     std::to_string(a + b) + " " + options + " " + DTRAIN_BINARY_DIR + "/tests/mpi_rank_program " +
                     what + "'");
}

}  // namespace dtrain::test
