// baton-loadtest: sends a load to a router and measures what comes back.
#include <map>
#include <string>

#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

#include "common/config/run_main.h"
#include "services/loadtest/commands/commands.h"

namespace baton::loadtest {
namespace {

constexpr char kUsage[] =
    R"(Sends a load to a baton-router and measures what comes back (docs/load-testing.md).

  baton-loadtest run    --router HOST:PORT (--rate R | --stages S | --trace FILE | --concurrency N)
                        (--duration T | --requests N) [--input N] [--output N] [--out FOLDER]
  baton-loadtest search --router HOST:PORT --slo S --duration T [--min_rate R] [--max_rate R]
  baton-loadtest report --results A/summary.json[,B/summary.json] [--html FILE]
)";

absl::Status Run(const config::Arguments& arguments) {
  // Standard output belongs to the commands' results.
  spdlog::set_default_logger(spdlog::stderr_logger_mt("baton-loadtest"));
  static const auto& commands = *new std::map<std::string, absl::Status (*)()>{
      {"run", RunLoad}, {"search", RunSearch}, {"report", RunReport}};
  if (arguments.size() != 1 || !commands.contains(arguments.front())) {
    return absl::InvalidArgumentError("give one command: run, search or report (see --help)");
  }
  return commands.at(arguments.front())();
}

}  // namespace
}  // namespace baton::loadtest

int main(int argc, char** argv) {
  return baton::config::RunMain(
      argc,
      argv,
      {.name = "baton-loadtest", .usage = baton::loadtest::kUsage, .version = BATON_VERSION},
      baton::loadtest::Run);
}
