// An HTTP server for one user, on civetweb. Its threads call the handlers.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "access.h"

struct mg_connection;
struct mg_context;

namespace dtrain::board {

struct Request {
  std::string method;
  std::string path;  // decoded, from "/" on, without the base path
  std::map<std::string, std::string> query;
  std::string body;  // of a POST: 64 KiB at most

  // Returns a parameter; empty: it is missing.
  std::string value(const std::string& name) const;
};

struct Response {
  int status = 200;
  std::string type = "application/json";
  std::string body;
  std::string policy;  // Content-Security-Policy; empty: that of the board's own page
};

// A stream of server-sent events.
class EventStream {
 public:
  EventStream(mg_connection* connection, const std::atomic<bool>& ends) : connection_(connection), ends_(ends) {}
  // False: the browser has gone.
  bool send(std::string_view event, std::string_view data);
  bool keep_alive();
  bool ends() const { return ends_; }

 private:
  bool write(std::string_view text);
  mg_connection* const connection_;
  const std::atomic<bool>& ends_;
};

struct Handlers {
  std::function<Response(const Request&)> answer;
  std::function<void(const Request&, EventStream&)> stream;  // of "/api/events"; returns soon after ends()
};

class Server {
 public:
  struct Options {
    std::string address = "127.0.0.1";
    std::uint16_t port = 0;  // 0: a free one
    std::string base_path;   // "/dtrain"; in front of each path that a proxy passes on; may be missing there
  };
  // Listens. SystemError: it cannot, with the reason.
  explicit Server(const Options& options);
  // Waits for the handlers.
  ~Server();
  Server& operator=(Server&&) = delete;

  std::uint16_t port() const { return port_; }
  // Answers requests from now on; those before got 503.
  void begin(AccessRules rules, Handlers handlers);

 private:
  int take(mg_connection* connection);
  int take_allowed(mg_connection* connection, Request request);
  std::string cookie_name() const { return "dtrain_board_" + std::to_string(port_); }

  const std::string base_path_;
  std::uint16_t port_ = 0;
  std::atomic<bool> ready_{false}, ends_{false};
  std::atomic<int> streams_{0};
  AccessRules rules_;
  Handlers handlers_;
  std::string failure_;  // civetweb's last message
  mg_context* context_ = nullptr;
};

}  // namespace dtrain::board
