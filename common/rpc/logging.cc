#include "common/rpc/logging.h"

#include <array>

#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

#include "common/rpc/status_details.h"

namespace baton::rpc {
namespace {

struct Level {
  const char* name;
  spdlog::level::level_enum level;
};

constexpr std::array kLevels = {Level{"trace", spdlog::level::trace},
                                Level{"debug", spdlog::level::debug},
                                Level{"info", spdlog::level::info},
                                Level{"warning", spdlog::level::warn},
                                Level{"error", spdlog::level::err}};
constexpr char kPattern[] = "%Y-%m-%dT%H:%M:%S.%eZ %l %t %v";

}  // namespace

absl::Status InitLogging(const std::string& level) {
  auto logger =
      std::make_shared<spdlog::logger>("baton", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  spdlog::set_default_logger(std::move(logger));
  spdlog::set_pattern(kPattern, spdlog::pattern_time_type::utc);
  return SetLogLevel(level);
}

absl::Status SetLogLevel(const std::string& level) {
  for (const Level& known : kLevels) {
    if (level == known.name) {
      spdlog::set_level(known.level);
      return absl::OkStatus();
    }
  }
  return InvalidField("level", "\"" + level + "\"; choose trace, debug, info, warning or error");
}

}  // namespace baton::rpc
