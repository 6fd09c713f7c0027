#include "network/probe_session.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/text.h"
#include "dtrain/run/version.h"

namespace dtrain::run {
namespace {

constexpr std::size_t kLongestErrors = 16 * 1024;
constexpr int kMostNoise = 200;  // lines that a login may print before the greeting

// Makes a socket for standard input: unlike with a pipe, a write does not kill this process when the reader is gone.
Pipe make_socket_pair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw SystemError("cannot make a socket", errno);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

}  // namespace

ProbeSession::ProbeSession(std::string host, const std::vector<std::string>& command)
    : host_(std::move(host)), program_(command.front()), process_([&] {
        Pipe in = make_socket_pair();
        Pipe out = make_pipe();
        Pipe err = make_pipe();
        Process process = Process::start(
            {.command = command, .fds = {{0, in.reader.get()}, {1, out.writer.get()}, {2, err.writer.get()}}});
        input_ = std::move(in.writer);
        output_ = std::move(out.reader);
        errors_ = std::move(err.reader);
        return process;
      }()) {}

bool ProbeSession::read_more(Time deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    std::array<pollfd, 2> entries{pollfd{output_.get(), POLLIN, 0}, pollfd{errors_.get(), POLLIN, 0}};
    const int count = ::poll(entries.data(), entries.size(), static_cast<int>(left.count()));
    if (count < 0 && errno != EINTR) throw SystemError("cannot wait for host " + host_, errno);
    if (count <= 0) continue;
    std::array<char, 4096> buffer{};
    if (entries[1].revents != 0) {
      const ssize_t size = ::read(errors_.get(), buffer.data(), buffer.size());
      if (size <= 0) {
        errors_.reset();
      } else if (error_text_.size() < kLongestErrors) {
        error_text_.append(buffer.data(), static_cast<std::size_t>(size));
      }
    }
    if (entries[0].revents == 0) continue;
    const ssize_t size = ::read(output_.get(), buffer.data(), buffer.size());
    if (size <= 0) return false;
    buffered_.append(buffer.data(), static_cast<std::size_t>(size));
    return true;
  }
}

bool ProbeSession::next_line(std::string& line, Time deadline) {
  for (;;) {
    if (const auto end = buffered_.find('\n'); end != std::string::npos) {
      line = buffered_.substr(0, end);
      buffered_.erase(0, end + 1);
      return true;
    }
    if (buffered_.size() > probe::kLongestLine || !read_more(deadline)) return false;
  }
}

// The last line of the remote shell's standard error.
std::string ProbeSession::last_words() {
  while (errors_ && error_text_.size() < kLongestErrors) {
    pollfd entry{errors_.get(), POLLIN, 0};
    std::array<char, 4096> buffer{};
    if (::poll(&entry, 1, 100) <= 0) break;
    const ssize_t size = ::read(errors_.get(), buffer.data(), buffer.size());
    if (size <= 0) break;
    error_text_.append(buffer.data(), static_cast<std::size_t>(size));
  }
  std::vector<std::string> lines = split(error_text_, '\n');
  std::string last;
  for (std::string& line : lines) {
    while (!line.empty() && line.back() == '\r') line.pop_back();
    if (!line.empty()) last = line;
  }
  return last;
}

void ProbeSession::greet(Time deadline) {
  std::string line;
  for (int noise = 0; noise < kMostNoise; ++noise) {
    if (!next_line(line, deadline)) break;
    if (!line.starts_with(probe::kGreeting)) continue;
    const Json greeting = Json::parse(line, nullptr, false);
    const std::string theirs = greeting.is_object() ? greeting.value("dtrain", "") : "";
    if (theirs != version() || greeting.value("protocol", 0) != probe::kProtocol) {
      throw ConfigError("host " + host_ + " has dtrain " + theirs + ", and this host " + version(),
                        "install the same version on all hosts, under the same path");
    }
    name_ = greeting.value("host", "");
    key_ = greeting.value("key", "");
    return;
  }
  const auto status = process_.wait(std::chrono::milliseconds(200));
  const std::string words = last_words();
  const std::string said = words.empty() ? "" : ": " + words;
  const std::string dtrain = executable_path().string();
  if (!status) {
    throw ConfigError(
        "host " + host_ + " did not answer in time" + said,
        "does `" + program_ + " " + host_ + " " + dtrain + " version` answer at once, without a question?");
  }
  if (status->code == 127 || status->code == 126) {
    throw ConfigError("host " + host_ + " has no program " + dtrain + said,
                      "install the same dtrain on all hosts, under the same path");
  }
  if (status->code == 255 || status->signal != 0) {
    throw ConfigError("host " + host_ + " cannot be reached by " + program_ + said,
                      "`" + program_ + " " + host_ + " true` must work without a password or a question");
  }
  throw ConfigError("dtrain on host " + host_ + " ended with " + status->describe() + said,
                    "is it another version? `" + dtrain + " version` there; here it is " + version());
}

void ProbeSession::send(const Json& request) {
  const std::string line = to_line(request) + "\n";
  for (std::size_t done = 0; done < line.size();) {
    const ssize_t count = ::send(input_.get(), line.data() + done, line.size() - done, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) throw CommError("host " + host_ + " has ended its connection");
    done += static_cast<std::size_t>(count);
  }
}

Json ProbeSession::receive(Time deadline) {
  std::string line;
  if (!next_line(line, deadline)) {
    const auto status = process_.wait(std::chrono::milliseconds(0));
    const std::string words = last_words();
    throw CommError("host " + host_ + (status ? " has ended its connection" : " did not answer in time") +
                    (words.empty() ? "" : ": " + words));
  }
  Json answer = Json::parse(line, nullptr, false);
  if (!answer.is_object()) throw CommError("host " + host_ + " sent an answer that cannot be read");
  return answer;
}

std::vector<Json> ask_each(std::vector<ProbeSession>& sessions, const std::vector<Json>& requests,
                           ProbeSession::Time deadline) {
  for (std::size_t i = 0; i < sessions.size(); ++i) sessions[i].send(requests[i]);
  std::vector<Json> answers;
  answers.reserve(sessions.size());
  for (ProbeSession& session : sessions) answers.push_back(session.receive(deadline));
  return answers;
}

std::vector<Json> ask_all(std::vector<ProbeSession>& sessions, const Json& request, ProbeSession::Time deadline) {
  return ask_each(sessions, std::vector<Json>(sessions.size(), request), deadline);
}

}  // namespace dtrain::run
