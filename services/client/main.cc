// baton-client: talks to a router from the command line.
#include <map>
#include <string>

#include "absl/strings/str_cat.h"

#include "common/config/run_main.h"
#include "services/client/commands/commands.h"

namespace baton::client {
namespace {

constexpr char kUsage[] =
    R"(Talks to a baton-router.

  baton-client generate --router HOST:PORT (--prompt TEXT | --chat TEXT | --prompt_file FILE |
                        --case FILE.jsonl[.gz] [--case_id ID]) [sampling flags]
  baton-client chat     --router HOST:PORT
  baton-client tokenize --router HOST:PORT (--prompt TEXT | --chat TEXT | --prompt_file FILE)
  baton-client eval     --router HOST:PORT --cases PATH[,PATH...] --out FILE.jsonl
                        [--concurrency N] [--kv POLICY] [--limit N] [--subset FILE] [--resume]
  baton-client models   --router HOST:PORT
  baton-client health   --router HOST:PORT [--wait SECONDS]
)";

absl::Status Run(const config::Arguments& arguments) {
  static const auto& commands =
      *new std::map<std::string, absl::Status (*)()>{{"generate", RunGenerate},
                                                     {"chat", RunChat},
                                                     {"tokenize", RunTokenize},
                                                     {"eval", RunEval},
                                                     {"models", RunModels},
                                                     {"health", RunHealth}};
  if (arguments.size() != 1) {
    return absl::InvalidArgumentError(
        "give one command: generate, chat, tokenize, eval, models or health (see --help)");
  }
  const auto command = commands.find(arguments.front());
  if (command == commands.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown command `", arguments.front(), "` (see --help)"));
  }
  return command->second();
}

}  // namespace
}  // namespace baton::client

int main(int argc, char** argv) {
  return baton::config::RunMain(
      argc,
      argv,
      {.name = "baton-client", .usage = baton::client::kUsage, .version = BATON_VERSION},
      baton::client::Run);
}
