#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "common/transport/ipc/connection_data.h"
#include "common/transport/ipc/listener.h"

namespace baton::transport::ipc {
namespace {

TEST(IpcConnectionDataTest, ComesBackFromItsText) {
  const auto made = ConnectionData::Make();
  ASSERT_TRUE(made.ok()) << made.status();
  const auto parsed = ConnectionData::Parse(made->ToString());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->machine, made->machine);
  EXPECT_EQ(parsed->socket, made->socket);
}

TEST(IpcConnectionDataTest, NoTwoSocketsHaveOneName) {
  EXPECT_NE(ConnectionData::Make()->socket, ConnectionData::Make()->socket);
}

TEST(IpcConnectionDataTest, AnotherMachineIsUnavailable) {
  ConnectionData data = *ConnectionData::Make();
  data.machine.back() = data.machine.back() == '0' ? '1' : '0';
  EXPECT_EQ(ConnectionData::Parse(data.ToString()).status().code(), absl::StatusCode::kUnavailable);
}

TEST(IpcConnectionDataTest, OtherTextIsInvalid) {
  const std::string machine = ConnectionData::Make()->machine;
  for (const std::string& text :
       std::vector<std::string>{std::string(),
                                machine,
                                machine + "/",
                                machine + "/other-name",
                                "baton-00",
                                machine + "/baton-" + std::string(128, '0')}) {
    EXPECT_EQ(ConnectionData::Parse(text).status().code(), absl::StatusCode::kInvalidArgument)
        << text;
  }
}

TEST(IpcConnectionDataTest, NobodyListensAtANewName) {
  EXPECT_EQ(Dial(ConnectionData::Make()->socket).status().code(), absl::StatusCode::kUnavailable);
}

TEST(IpcConnectionDataTest, NamesThatNoSocketHasAreInvalid) {
  for (const std::string& name : {std::string(), std::string(108, 'x')}) {
    EXPECT_EQ(Dial(name).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(Listen(name).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace baton::transport::ipc
