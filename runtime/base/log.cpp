#include "dtrain/base/log.h"

#include <array>
#include <string_view>

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/null_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"

namespace dtrain {
namespace {

struct Level {
  const char* name;
  spdlog::level::level_enum value;
};
constexpr std::array kLevels{Level{"trace", spdlog::level::trace}, Level{"debug", spdlog::level::debug},
                             Level{"info", spdlog::level::info},   Level{"warn", spdlog::level::warn},
                             Level{"error", spdlog::level::err},   Level{"off", spdlog::level::off}};

// Writes the level in five columns: spdlog's own "warning" and "critical" would move the text.
class LevelName final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    std::string_view name = "error";
    for (const Level& level : kLevels) {
      if (level.value == message.level) name = level.name;
    }
    out.append(name.data(), name.data() + name.size());
    for (std::size_t column = name.size(); column < 5; ++column) out.push_back(' ');
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<LevelName>(); }
};

spdlog::level::level_enum parse_level(const std::string& text) {
  std::vector<std::string> names;
  for (const Level& level : kLevels) {
    if (level.name == text) return level.value;
    names.emplace_back(level.name);
  }
  throw ConfigError("unknown log level '" + text + "'", "use one of " + join(names, ", "));
}

}  // namespace

Logger make_stderr_logger(const std::string& level) {
  // The logger is not in spdlog's registry of loggers, because that would be global state.
  auto logger = std::make_shared<spdlog::logger>("dtrain", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<LevelName>('*').set_pattern("%H:%M:%S.%e %* %v");
  logger->set_formatter(std::move(formatter));
  logger->set_level(parse_level(level));
  logger->flush_on(spdlog::level::warn);
  return logger;
}

Logger make_null_logger() {
  auto logger = std::make_shared<spdlog::logger>("null", std::make_shared<spdlog::sinks::null_sink_mt>());
  logger->set_level(spdlog::level::off);
  return logger;
}

}  // namespace dtrain
