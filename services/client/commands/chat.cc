#include <unistd.h>

#include <iostream>
#include <random>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"

#include "common/base/status_macros.h"
#include "services/client/commands/commands.h"
#include "services/client/flags.h"
#include "services/client/generation.h"

namespace baton::client {
namespace {

void AddTurn(const char* role, std::string content, inference::v1::Chat* chat) {
  inference::v1::Message* message = chat->add_messages();
  message->set_role(role);
  message->set_content(std::move(content));
}

std::string NewSessionId() {
  std::random_device device;
  return absl::StrFormat("chat-%08x%08x%08x%08x", device(), device(), device(), device());
}

bool ReadTurn(bool interactive, std::string* line) {
  if (interactive) {
    std::cerr << "> " << std::flush;
  }
  return static_cast<bool>(std::getline(std::cin, *line));
}

}  // namespace

absl::Status RunChat() {
  BATON_ASSIGN_OR_RETURN(const auto connection, ConnectionFromFlags());
  inference::v1::GenerateRequest request;
  SetGenerationFields(&request);
  if (request.session_id().empty() && request.sampling().n() <= 1) {
    request.set_session_id(NewSessionId());
  }
  const bool interactive = isatty(STDIN_FILENO) != 0;
  if (interactive) {
    std::cerr << "One turn per line; an empty line is skipped, end of input leaves.\n";
  }
  absl::Status last;
  std::string line;
  while (ReadTurn(interactive, &line)) {
    if (line.empty()) {
      continue;
    }
    AddTurn("user", line, request.mutable_chat());
    const auto generation =
        Generate(*connection, request, [](uint32_t index, std::string_view text) {
          if (index == 0) {
            std::cout << text << std::flush;
          }
        });
    std::cout << std::endl;
    last = generation.status();
    if (!generation.ok()) {
      // The turn is taken back, so that the next one can be answered.
      std::cerr << std::string(last.message()) << "\n";
      request.mutable_chat()->mutable_messages()->RemoveLast();
      continue;
    }
    AddTurn("assistant",
            generation->sequences.empty() ? "" : generation->sequences.front().text,
            request.mutable_chat());
  }
  return interactive ? absl::OkStatus() : last;
}

}  // namespace baton::client
