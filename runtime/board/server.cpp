#include "server.h"

#include <array>
#include <cstring>
#include <exception>

#include <civetweb.h>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"

namespace dtrain::board {
namespace {

constexpr const char* kThreads = "24";
constexpr int kMostStreams = 16;  // each keeps a thread busy
constexpr std::size_t kMostBody = std::size_t{64} << 10;
// Scripts and styles of our own only; no other page may show ours in a frame.
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src "
    "'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'";

std::string decoded(std::string_view text, bool is_query) {
  std::string result(text.size() + 1, '\0');
  const int length = mg_url_decode(text.data(), static_cast<int>(text.size()), result.data(),
                                   static_cast<int>(result.size()), is_query ? 1 : 0);
  result.resize(length < 0 ? 0 : static_cast<std::size_t>(length));
  return result;
}

std::map<std::string, std::string> query_of(const char* text) {
  std::map<std::string, std::string> query;
  std::string_view rest = text ? text : "";
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('&'), rest.size());
    const std::string_view pair = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const std::size_t equals = std::min(pair.find('='), pair.size());
    query[decoded(pair.substr(0, equals), true)] = decoded(pair.substr(std::min(equals + 1, pair.size())), true);
  }
  return query;
}

std::string_view header(const mg_connection* connection, const char* name) {
  const char* const value = mg_get_header(connection, name);
  return value ? value : "";
}

const char* reason_of(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 303:
      return "See Other";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 409:
      return "Conflict";
    case 413:
      return "Content Too Large";
    case 421:
      return "Misdirected Request";
    case 503:
      return "Service Unavailable";
    default:
      return status < 500 ? "Bad Request" : "Internal Server Error";
  }
}

int send(mg_connection* connection, const Response& response, const std::string& more_headers = {}) {
  const std::string head = "HTTP/1.1 " + std::to_string(response.status) + " " + reason_of(response.status) +
                           "\r\nContent-Type: " + response.type +
                           "\r\nContent-Length: " + std::to_string(response.body.size()) +
                           "\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: "
                           "no-referrer\r\nCross-Origin-Resource-Policy: same-origin\r\nContent-Security-Policy: " +
                           (response.policy.empty() ? kPolicy : response.policy) + "\r\n" + more_headers + "\r\n";
  mg_write(connection, head.data(), head.size());
  if (std::strcmp(mg_get_request_info(connection)->request_method, "HEAD") != 0) {
    mg_write(connection, response.body.data(), response.body.size());
  }
  return response.status;
}

Response refusal(int status, const std::string& why) {
  return {.status = status, .type = "text/plain; charset=utf-8", .body = why + "\n"};
}

Response refusal_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kWrongHost:
      return refusal(421,
                     "The board does not know itself by this name: use the address that it has printed, or give "
                     "this one by --base-url.");
    case Verdict::kNoToken:
      return refusal(401, "Open the address that `dtrain board` has printed: it has a token.");
    case Verdict::kForeignOrigin:
      return refusal(403, "This request does not come from the board's own page.");
    case Verdict::kReadOnly:
      return refusal(403, "The board only shows: start it with --control to change anything.");
    default:
      return refusal(405, "The board knows GET, HEAD and POST.");
  }
}

}  // namespace

std::string Request::value(const std::string& name) const {
  const auto found = query.find(name);
  return found == query.end() ? std::string() : found->second;
}

bool EventStream::write(std::string_view text) {
  return !ends_ && mg_write(connection_, text.data(), text.size()) == static_cast<int>(text.size());
}

bool EventStream::send(std::string_view event, std::string_view data) {
  std::string text = "event: ";
  text.append(event).append("\ndata: ").append(data).append("\n\n");  // the data is one line of JSON
  return write(text);
}

bool EventStream::keep_alive() {
  return write(": \n\n");
}

Server::Server(const Options& options) : base_path_(options.base_path) {
  mg_init_library(0);
  mg_callbacks callbacks{};
  callbacks.begin_request = [](mg_connection* connection) {
    return static_cast<Server*>(mg_get_request_info(connection)->user_data)->take(connection);
  };
  callbacks.log_message = [](const mg_connection* connection, const char* message) {
    if (auto* const server = static_cast<Server*>(mg_get_user_data(mg_get_context(connection))))
      server->failure_ = message;
    return 1;  // it is not printed
  };
  const bool is_v6 = options.address.find(':') != std::string::npos;
  const std::string place =
      (is_v6 ? "[" + options.address + "]" : options.address) + ":" + std::to_string(options.port);
  const std::array<const char*, 15> settings = {"listening_ports",
                                                place.c_str(),
                                                "num_threads",
                                                kThreads,
                                                "request_timeout_ms",
                                                "20000",
                                                "enable_keep_alive",
                                                "yes",
                                                "keep_alive_timeout_ms",
                                                "4000",
                                                "enable_directory_listing",
                                                "no",
                                                "tcp_nodelay",  // an answer is written in two parts
                                                "1",
                                                nullptr};
  context_ = mg_start(&callbacks, this, const_cast<const char**>(settings.data()));
  if (!context_) {
    const int code = errno;
    mg_exit_library();
    throw SystemError("the board cannot listen on " + place + (failure_.empty() ? "" : " (" + failure_ + ")"),
                      code == 0 ? EADDRINUSE : code);
  }
  std::array<mg_server_port, 2> ports{};
  if (mg_get_server_ports(context_, static_cast<int>(ports.size()), ports.data()) > 0) {
    port_ = static_cast<std::uint16_t>(ports[0].port);
  }
}

Server::~Server() {
  ends_ = true;
  mg_stop(context_);
  mg_exit_library();
}

void Server::begin(AccessRules rules, Handlers handlers) {
  rules_ = std::move(rules);
  handlers_ = std::move(handlers);
  ready_ = true;
}

int Server::take(mg_connection* connection) {
  if (!ready_) return send(connection, refusal(503, "The board begins."));
  const mg_request_info& info = *mg_get_request_info(connection);
  Request request{.method = info.request_method, .path = info.local_uri, .query = query_of(info.query_string)};
  if (!base_path_.empty() && request.path.starts_with(base_path_)) request.path.erase(0, base_path_.size());
  if (request.path.empty()) request.path = "/";
  const std::string token = request.value("token");
  const Verdict verdict = judge({.method = request.method,
                                 .host = header(connection, "Host"),
                                 .origin = header(connection, "Origin"),
                                 .token_in_url = token,
                                 .token_in_cookie = cookie_of(header(connection, "Cookie"), cookie_name())},
                                rules_);
  if (verdict == Verdict::kGiveCookie) {
    const std::string path = base_path_.empty() ? "/" : base_path_ + "/";
    return send(connection, {.status = 303, .type = "text/plain", .body = ""},
                "Set-Cookie: " + cookie_name() + "=" + rules_.token + "; HttpOnly; SameSite=Strict; Path=" + path +
                    "\r\nLocation: " + path + "\r\n");
  }
  if (verdict != Verdict::kAllowed) return send(connection, refusal_of(verdict));
  return take_allowed(connection, std::move(request));
}

int Server::take_allowed(mg_connection* connection, Request request) {
  try {
    if (request.path == "/api/events") {
      if (streams_.fetch_add(1) >= kMostStreams) {
        --streams_;
        return send(connection, refusal(503, "Too many pages of the board are open."));
      }
      const std::string head =
          "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\nX-Accel-Buffering: "
          "no\r\nConnection: close\r\n\r\n";
      mg_write(connection, head.data(), head.size());
      EventStream stream(connection, ends_);
      handlers_.stream(request, stream);
      --streams_;
      return 200;
    }
    if (request.method == "POST") {
      std::array<char, 4096> part{};
      for (int length = 0; (length = mg_read(connection, part.data(), part.size())) > 0;) {
        request.body.append(part.data(), static_cast<std::size_t>(length));
        if (request.body.size() > kMostBody) return send(connection, refusal(413, "The request is too long."));
      }
    }
    return send(connection, handlers_.answer(request));
  } catch (const ConfigError& error) {
    return send(connection,
                {.status = 404, .body = to_line(Json{{"error", error.what()}, {"remedy", error.remedy()}})});
  } catch (const std::exception& error) {
    return send(connection, {.status = 500, .body = to_line(Json{{"error", describe(error)}})});
  }
}

}  // namespace dtrain::board
