#include "services/client/accounting.h"

#include <string>

#include "gtest/gtest.h"

namespace baton::client {
namespace {

TEST(AccountingTest, NamesEveryFigureOfUsage) {
  Generation generation;
  generation.started.set_request_id("abc");
  generation.usage.set_prompt_tokens(4123);
  generation.usage.set_completion_tokens(17);
  generation.usage.mutable_prefill_time()->set_nanos(1500000);
  generation.usage.set_kv_wire_bytes(9876543);
  generation.usage.set_transport("grpc");
  const std::string table = AccountingTable(generation);
  for (const char* text : {"abc", "4123 tokens", "17 tokens", "1.5 ms", "9876543 bytes", "grpc"}) {
    EXPECT_NE(table.find(text), std::string::npos) << text << "\n" << table;
  }
}

}  // namespace
}  // namespace baton::client
