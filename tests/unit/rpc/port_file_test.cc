#include "common/rpc/port_file.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "gtest/gtest.h"

namespace baton::rpc {
namespace {

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(PortFileTest, HoldsBothPortsAndNothingElseIsLeftBehind) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / "baton_port_file_test";
  std::filesystem::create_directory(folder);
  const std::string path = folder / "ports.json";
  ASSERT_TRUE(WritePortFile(path, 4711, 9090).ok());
  EXPECT_EQ(ReadAll(path), "{\"grpc\":4711,\"metrics\":9090}\n");
  ASSERT_TRUE(WritePortFile(path, 1, 2).ok());
  EXPECT_EQ(ReadAll(path), "{\"grpc\":1,\"metrics\":2}\n");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
  std::filesystem::remove_all(folder);
}

TEST(PortFileTest, UnwritablePathIsAnErrorThatNamesIt) {
  const absl::Status status = WritePortFile("/nonexistent-folder/ports", 1, 2);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(std::string(status.message()).find("/nonexistent-folder/ports"), std::string::npos);
}

TEST(PortFileTest, RemovesWhatARunBeforeLeft) {
  const std::string path = testing::TempDir() + "/baton_port_file_of_before.json";
  ASSERT_TRUE(WritePortFile(path, 4711, 9090).ok());
  EXPECT_TRUE(RemovePortFile(path).ok());
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_TRUE(RemovePortFile(path).ok()) << "there is none";
  EXPECT_TRUE(RemovePortFile("").ok());
  const absl::Status folder = RemovePortFile("/proc/self");
  EXPECT_EQ(folder.code(), absl::StatusCode::kUnavailable) << folder;
}

TEST(PortFileTest, EmptyPathWritesNothing) { EXPECT_TRUE(WritePortFile("", 1, 2).ok()); }

}  // namespace
}  // namespace baton::rpc
