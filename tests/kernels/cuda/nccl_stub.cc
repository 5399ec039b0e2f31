// A library in NCCL's place whose calls do nothing; with the functions that register buffers where
// BATON_STUB_REGISTERS is defined.
#include <driver_types.h>
#include <nccl.h>

#include <cstddef>

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION(2, 28, 3);
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t /*result*/) { return "an error"; }

const char* ncclGetLastError(ncclComm_t /*comm*/) { return "of the stub"; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* /*id*/) { return ncclSuccess; }

ncclResult_t ncclCommInitRankConfig(ncclComm_t* /*comm*/,
                                    int /*ranks*/,
                                    ncclUniqueId /*id*/,
                                    int /*rank*/,
                                    ncclConfig_t* /*config*/) {
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t /*comm*/, ncclResult_t* /*error*/) {
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t /*comm*/) { return ncclSuccess; }

ncclResult_t ncclMemAlloc(void** /*data*/, size_t /*size*/) { return ncclSuccess; }

ncclResult_t ncclMemFree(void* /*data*/) { return ncclSuccess; }

ncclResult_t ncclSend(const void* /*data*/,
                      size_t /*count*/,
                      ncclDataType_t /*type*/,
                      int /*peer*/,
                      ncclComm_t /*comm*/,
                      cudaStream_t /*stream*/) {
  return ncclSuccess;
}

ncclResult_t ncclRecv(void* /*data*/,
                      size_t /*count*/,
                      ncclDataType_t /*type*/,
                      int /*peer*/,
                      ncclComm_t /*comm*/,
                      cudaStream_t /*stream*/) {
  return ncclSuccess;
}

#ifdef BATON_STUB_REGISTERS
ncclResult_t ncclCommRegister(ncclComm_t /*comm*/,
                              void* /*data*/,
                              size_t /*size*/,
                              void** /*handle*/) {
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(ncclComm_t /*comm*/, void* /*handle*/) { return ncclSuccess; }
#endif

}  // extern "C"
