#include <algorithm>
#include <filesystem>

#include "dtrain/base/text.h"
#include "network/choose_network.h"

namespace dtrain::run {
namespace {

// As one word of a shell.
}  // namespace

RemoteCommand over_remote_shell(std::vector<std::string> shell) {
  if (shell.empty()) shell = {"ssh"};
  if (std::filesystem::path(shell.front()).filename() == "ssh") {
    // The first value that ssh is given for an option counts: what the user says goes before these.
    for (const char* word : {"-o", "BatchMode=yes", "-o", "ConnectTimeout=5"}) shell.emplace_back(word);
  }
  return [shell](const std::string& host, const std::vector<std::string>& command) {
    if (host.empty()) return command;
    std::vector<std::string> result = shell;
    result.push_back(host);
    std::string text;
    for (const std::string& word : command) text += (text.empty() ? "" : " ") + shell_quoted(word);
    result.push_back(text);
    return result;
  };
}

RemoteCommand over_srun() {
  return [](const std::string& host, const std::vector<std::string>& command) {
    if (host.empty()) return command;
    std::vector<std::string> result{"srun", "--overlap", "--quiet", "--nodes=1", "--ntasks=1", "--nodelist=" + host};
    result.insert(result.end(), command.begin(), command.end());
    return result;
  };
}

}  // namespace dtrain::run
