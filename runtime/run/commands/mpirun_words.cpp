#include "commands/mpirun_words.h"

#include <csignal>
#include <cstring>
#include <regex>

namespace dtrain::run {
namespace {

std::string one_line(const std::string& text) {
  return std::regex_replace(text, std::regex("\\s+"), " ");
}

// The signal whose strsignal() text begins `name`, as in srun's messages; 0: none.
int signal_called(const std::string& name) {
  for (int signal = 1; signal < NSIG; ++signal) {
    if (const char* text = ::sigdescr_np(signal); text && name.rfind(text, 0) == 0) return signal;
  }
  return 0;
}

}  // namespace

JobWords read_mpirun_words(const std::string& text) {
  const std::string words = one_line(text);
  JobWords result;
  std::smatch found;
  if (std::regex_search(words, found,
                        std::regex("process rank ([0-9]+) with PID [0-9]+ on node [^ ]+ exited on signal ([0-9]+)"))) {
    result.first = EndOfRank{.rank = std::stoi(found[1]), .signal = std::stoi(found[2])};
  } else if (std::regex_search(words, found,
                               std::regex("Process name: \\[\\[[0-9]+,[0-9]+\\],([0-9]+)\\] Exit code: ([0-9]+)"))) {
    result.first = EndOfRank{.rank = std::stoi(found[1]), .code = std::stoi(found[2])};
  }
  if (std::regex_search(words, found, std::regex("Remote daemon: \\[\\[[0-9]+,[0-9]+\\],[0-9]+\\] on node ([^ ]+)"))) {
    result.lost_host = found[1];
  }
  return result;
}

JobWords read_srun_words(const std::string& text, int rank) {
  JobWords result;
  std::smatch found;
  const std::regex task("srun: error: [^ ]+: tasks? ([0-9]+)[-,0-9]*: ([^\\n]+)");
  for (std::sregex_iterator each(text.begin(), text.end(), task), end; each != end; ++each) {
    const std::string how = (*each)[2];
    EndOfRank one{.rank = std::stoi((*each)[1])};
    std::smatch code;
    if (std::regex_search(how, code, std::regex("Exited with exit code ([0-9]+)"))) {
      one.code = std::stoi(code[1]);
    } else if ((one.signal = signal_called(how)) == 0) {
      continue;
    }
    if (!result.first || one.rank == rank) result.first = one;
  }
  if (std::regex_search(text, found, std::regex("Node failure on ([^ \\n]+)"))) result.lost_host = found[1];
  return result;
}

}  // namespace dtrain::run
