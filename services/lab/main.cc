// baton-lab: a model without services, for looking at it and checking it.
#include <array>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

#include "common/config/run_main.h"
#include "services/lab/commands/calibrate.h"
#include "services/lab/commands/eval.h"
#include "services/lab/commands/inspect.h"
#include "services/lab/commands/logits.h"
#include "services/lab/commands/overlap.h"
#include "services/lab/commands/table.h"
#include "services/lab/commands/tokenize.h"

namespace {

struct Command {
  std::string_view name;
  std::string_view summary;
  absl::Status (*run)();
};

constexpr std::array<Command, 7> kCommands = {{
    {"logits", "logits of every position and a greedy continuation", baton::lab::RunLogits},
    {"tokenize",
     "token ids, text and chat templates, JSON lines on stdin",
     baton::lab::RunTokenize},
    {"eval", "evaluation cases with accuracy and KV bytes", baton::lab::RunEval},
    {"table", "KV policies side by side, from files of eval --table", baton::lab::RunTable},
    {"calibrate", "KV parameters for one model, from cases", baton::lab::RunCalibrate},
    {"overlap",
     "how well a prompt's key basis fits later turns of a conversation",
     baton::lab::RunOverlap},
    {"inspect", "what a model directory holds", baton::lab::RunInspect},
}};

std::string Usage() {
  std::string usage = "baton-lab COMMAND --model DIR [flags]\n\nCommands:\n";
  for (const Command& command : kCommands) {
    absl::StrAppend(&usage,
                    "  ",
                    std::string(command.name),
                    std::string(12 - command.name.size(), ' '),
                    std::string(command.summary),
                    "\n");
  }
  return usage;
}

absl::Status Dispatch(const baton::config::Arguments& arguments) {
  // Standard output belongs to the commands' results.
  spdlog::set_default_logger(spdlog::stderr_logger_mt("baton-lab"));
  if (arguments.size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat("exactly one command is needed\n", Usage()));
  }
  for (const Command& command : kCommands) {
    if (command.name == arguments.front()) {
      return command.run();
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown command \"", arguments.front(), "\"\n", Usage()));
}

}  // namespace

int main(int argc, char** argv) {
  return baton::config::RunMain(
      argc, argv, {.name = "baton-lab", .usage = Usage(), .version = BATON_VERSION}, Dispatch);
}
