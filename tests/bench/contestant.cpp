#include "contestant.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iostream>
#include <sstream>

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/numeric.h"

namespace dtrain::bench {

namespace {
constexpr int kPatienceMs = 180'000;
}

ScratchFolder::ScratchFolder(const std::filesystem::path& parent) {
  std::string name = (parent / "dtrain-bench-XXXXXX").string();
  if (!::mkdtemp(name.data())) throw SystemError("make a folder in " + name, errno);
  path_ = name;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

Contestant::Contestant(std::string base, int ranks) : base_(std::move(base)) {
  for (int rank = 0; rank < ranks; ++rank) {
    for (const char* end : {".commands", ".replies"}) {
      const std::string path = base_ + std::to_string(rank) + end;
      if (::mkfifo(path.c_str(), 0600) != 0) throw SystemError("make the FIFO " + path, errno);
      // Opened for both directions: opening never blocks, and the other side may come later.
      auto& fds = std::string(end) == ".commands" ? commands_ : replies_;
      fds.emplace_back(::open(path.c_str(), O_RDWR | O_CLOEXEC));
      if (!fds.back()) throw SystemError("open " + path, errno);
    }
  }
  pending_.resize(static_cast<std::size_t>(ranks));
}

std::string Contestant::read_line(std::size_t rank) {
  std::string& text = pending_[rank];
  while (text.find('\n') == std::string::npos) {
    pollfd poller{replies_[rank].get(), POLLIN, 0};
    if (::poll(&poller, 1, kPatienceMs) <= 0) {
      throw Error("rank " + std::to_string(rank) + " of " + base_ + " did not answer in 180 s", "its log says why");
    }
    char buffer[4096];
    const ssize_t got = ::read(replies_[rank].get(), buffer, sizeof buffer);
    if (got <= 0) throw SystemError("read the answer of " + base_, errno);
    text.append(buffer, static_cast<std::size_t>(got));
  }
  const auto end = text.find('\n');
  const std::string line = text.substr(0, end);
  text.erase(0, end + 1);
  return line;
}

std::vector<std::int64_t> Contestant::steps(int steps, const std::string& command) {
  const std::string line = (command.empty() ? "" : command + " ") + std::to_string(steps) + "\n";
  for (const UniqueFd& fd : commands_) {
    if (::write(fd.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
      throw SystemError("command " + base_, errno);
    }
  }
  std::vector<std::int64_t> slowest(static_cast<std::size_t>(steps), 0);
  for (std::size_t rank = 0; rank < replies_.size(); ++rank) {
    std::istringstream words(read_line(rank));
    for (std::int64_t& time : slowest) {
      std::int64_t value = 0;
      if (!(words >> value)) throw Error(base_ + " answered fewer than " + std::to_string(steps) + " step times");
      time = std::max(time, value);
    }
  }
  return slowest;
}

void Contestant::end(const std::string& command) {
  const std::string line = command + "\n";
  for (const UniqueFd& fd : commands_) {
    if (::write(fd.get(), line.data(), line.size()) < 0) throw SystemError("end " + base_, errno);
  }
}

std::string Contestant::give_own_world(int rank) {
  const std::string own = base_ + std::to_string(rank);
  for (const char* end : {".commands", ".replies"}) std::filesystem::rename(own + end, own + "0" + end);
  return own;
}

void show_log(const std::filesystem::path& file) {
  std::ifstream log(file);
  if (log.peek() != std::ifstream::traits_type::eof()) std::cerr << log.rdbuf();  // of nothing, it would end the stream
}

double median_of(std::vector<double> values) {
  if (values.empty()) throw Error("no measurements");
  return median_midpoint(std::move(values));
}

}  // namespace dtrain::bench
