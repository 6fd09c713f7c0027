#include <algorithm>
#include <filesystem>

#include "dtrain/base/text.h"
#include "network/choose_network.h"

namespace dtrain::run {

RemoteCommand over_remote_shell(std::vector<std::string> shell) {
  if (shell.empty()) shell = {"ssh"};
  if (std::filesystem::path(shell.front()).filename() == "ssh") {
    // ssh takes the first value of an option, so the user's options go before these.
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
