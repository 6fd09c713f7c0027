#include "saver/messages.h"

#include <cerrno>

#include <sys/mman.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"

namespace dtrain::checkpoints {

Json to_json(const SaverOptions& options) {
  Json json = {{"storage", options.storage.string()}, {"host", options.host},           {"hosts", options.hosts},
               {"latest", options.retention.latest},  {"best", options.retention.best}, {"log", options.log.string()}};
  return json;
}

SaverOptions saver_options_from(const Json& json) {
  SaverOptions options;
  options.storage = json.at("storage").get<std::string>();
  options.host = json.at("host").get<int>();
  options.hosts = json.at("hosts").get<int>();
  options.retention.latest = json.at("latest").get<int>();
  options.retention.best = json.at("best").get<int>();
  options.log = json.at("log").get<std::string>();
  return options;
}

std::string to_message(const SaveRequest& request) {
  Json files = Json::array();
  for (const FileImage& file : request.files) {
    files.push_back({{"name", file.name}, {"offset", file.offset}, {"bytes", file.bytes}});
    if (file.weights) files.back()["weights"] = *file.weights;
    if (!file.may_be_infinite.empty()) files.back()["may_be_infinite"] = file.may_be_infinite;
  }
  const Json line = {{"number", request.number},
                     {"about", to_json(request.about)},
                     {"files", std::move(files)},
                     {"passed_over", request.passed_over},
                     {"companion", request.companion.string()},
                     {"patience_s", request.patience_s}};
  return to_line(line) + "\n" + to_line(request.state) + "\n";
}

SaveOrder save_order_from(const std::string& message) {
  const auto end = message.find('\n');
  const Json line = Json::parse(message.substr(0, end));
  SaveOrder order;
  order.request.number = line.at("number").get<std::uint64_t>();
  order.request.about = about_from(line.at("about"));
  for (const Json& file : line.at("files")) {
    order.request.files.push_back({file.at("name").get<std::string>(), file.at("offset").get<std::size_t>(),
                                   file.at("bytes").get<std::size_t>()});
    FileImage& image = order.request.files.back();
    if (file.contains("weights")) image.weights = file["weights"].get<std::string>();
    image.may_be_infinite = file.value("may_be_infinite", std::vector<std::string>());
  }
  order.request.passed_over = line.at("passed_over").get<std::vector<std::int64_t>>();
  order.request.companion = line.at("companion").get<std::string>();
  order.request.patience_s = line.at("patience_s").get<double>();
  if (end != std::string::npos) order.state = message.substr(end + 1);
  return order;
}

Json to_json(const SaveResult& result) {
  return {{"about", to_json(result.about)}, {"path", result.path.string()}, {"error", result.error},
          {"bytes", result.bytes},          {"wait_s", result.wait_s},      {"write_s", result.write_s},
          {"cpu_s", result.cpu_s},          {"deleted", result.deleted},    {"not_finite", result.not_finite}};
}

SaveResult save_result_from(const Json& json) {
  SaveResult result;
  result.about = about_from(json.at("about"));
  result.path = json.at("path").get<std::string>();
  result.error = json.at("error").get<std::string>();
  result.bytes = json.at("bytes").get<std::int64_t>();
  result.wait_s = json.at("wait_s").get<double>();
  result.write_s = json.at("write_s").get<double>();
  result.cpu_s = json.at("cpu_s").get<double>();
  result.not_finite = json.at("not_finite").get<std::string>();
  result.deleted = json.at("deleted").get<std::vector<std::string>>();
  return result;
}

bool send_message(UnixSocket& socket, std::string_view message) {
  const UniqueFd content(::memfd_create("dtrain-saver-message", MFD_CLOEXEC));
  if (!content || write_all(content.get(), message) != message.size()) {
    throw SystemError("cannot write a message of " + std::to_string(message.size()) + " bytes into memory", errno);
  }
  const int fd = content.get();
  return socket.send("message", std::span(&fd, 1));
}

std::optional<std::string> receive_message(UnixSocket& socket, std::chrono::milliseconds timeout, bool* timed_out) {
  const auto envelope = socket.receive(timeout, timed_out);
  if (!envelope) return std::nullopt;
  if (envelope->fds.size() != 1) throw SystemError("a message to or from dtrain-saver has no content", EBADMSG);
  const int fd = envelope->fds.front().get();
  const off_t size = ::lseek(fd, 0, SEEK_END);
  std::string content(static_cast<std::size_t>(std::max<off_t>(size, 0)), '\0');
  std::size_t have = 0;
  while (have < content.size()) {
    const ssize_t count = ::pread(fd, content.data() + have, content.size() - have, static_cast<off_t>(have));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) throw SystemError("cannot read a message to or from dtrain-saver", count < 0 ? errno : EBADMSG);
    have += static_cast<std::size_t>(count);
  }
  return content;
}

}  // namespace dtrain::checkpoints
