// NCCL's registration of buffers, with libraries in its place: no communicator and no device.
#include "kernels/cuda/nccl/nccl_registration.h"

#include <nccl.h>

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/cuda/nccl/nccl_api.h"

namespace baton::kernels::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// What NCCL was told, of buffers whose handle is their address.
std::vector<void*>& Registered() {
  static std::vector<void*> registered;
  return registered;
}
std::vector<void*>& GivenBack() {
  static std::vector<void*> given_back;
  return given_back;
}

ncclResult_t Register(ncclComm_t /*comm*/, void* data, size_t /*size*/, void** handle) {
  Registered().push_back(data);
  *handle = data;
  return ncclSuccess;
}

ncclResult_t Deregister(ncclComm_t /*comm*/, void* handle) {
  GivenBack().push_back(handle);
  return ncclSuccess;
}

std::shared_ptr<const NcclApi> Load(const std::string& file) {
  absl::StatusOr<std::shared_ptr<const NcclApi>> api = LoadNccl({.override_file = file});
  EXPECT_TRUE(api.ok()) << api.status();
  return api.ok() ? *api : nullptr;
}

class NcclRegistrationTest : public ::testing::Test {
 protected:
  NcclRegistrationTest() {
    Registered().clear();
    GivenBack().clear();
  }

  std::array<std::byte, 64> first_{};
  std::array<std::byte, 64> second_{};
};

TEST_F(NcclRegistrationTest, AnNcclWithoutItIsGoodForAllElse) {
  const std::shared_ptr<const NcclApi> api = Load(BATON_NCCL_STUB);
  ASSERT_NE(api, nullptr);
  const absl::Status status = NcclRegistration(api).Add(nullptr, first_);
  EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("2.28.3"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("ncclCommRegister"));
}

TEST_F(NcclRegistrationTest, AllIsGivenBackOnce) {
  const std::shared_ptr<const NcclApi> loaded = Load(BATON_NCCL_REGISTERING_STUB);
  ASSERT_NE(loaded, nullptr);
  EXPECT_TRUE(loaded->CanRegister().ok());
  auto api = std::make_shared<NcclApi>(*loaded);
  api->register_buffer = Register;
  api->deregister_buffer = Deregister;
  NcclRegistration registration(api);
  EXPECT_TRUE(registration.Add(nullptr, first_).ok());
  EXPECT_TRUE(registration.Add(nullptr, second_).ok());
  EXPECT_THAT(Registered(), ElementsAre(first_.data(), second_.data()));
  EXPECT_THAT(GivenBack(), IsEmpty());

  registration.Clear(nullptr);
  EXPECT_THAT(GivenBack(), ElementsAre(first_.data(), second_.data()));
  registration.Clear(nullptr);
  EXPECT_EQ(GivenBack().size(), 2u);
  EXPECT_TRUE(registration.empty());
}

// NCCL_LOCAL_REGISTER=0: it says that all is well, and gives no handle.
TEST_F(NcclRegistrationTest, ARegistrationThatIsNoneIsAnError) {
  const std::shared_ptr<const NcclApi> api = Load(BATON_NCCL_REGISTERING_STUB);
  ASSERT_NE(api, nullptr);
  NcclRegistration registration(api);
  EXPECT_TRUE(absl::IsFailedPrecondition(registration.Add(nullptr, first_)));
  EXPECT_TRUE(registration.empty());
}

}  // namespace
}  // namespace baton::kernels::cuda
