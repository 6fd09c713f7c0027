#include "cuda_errors.h"

namespace dtrain::test::fake_gpu {

const char* cuda_error_text(int code) {
  switch (code) {
    case 0:
      return "no error";
    case 1:
      return "invalid argument";
    case 2:
      return "out of memory";
    case 4:
      return "driver shutting down";
    case 46:
      return "CUDA-capable device(s) is/are busy or unavailable";
    case 100:
      return "no CUDA-capable device is detected";
    case 101:
      return "invalid device ordinal";
    case 214:
      return "uncorrectable ECC error encountered";
    case 220:
      return "uncorrectable NVLink error detected during the execution";
    case 400:
      return "invalid resource handle";
    case 600:
      return "device not ready";
    case 700:
      return "an illegal memory access was encountered";
    case 710:
      return "device-side assert triggered";
    case 719:
      return "unspecified launch failure";
    case 900:
      return "operation not permitted when stream is capturing";
    case 901:
      return "operation failed due to a previous error during capture";
    case 999:
      return "unknown error";
    default:
      return "unrecognized error code";
  }
}

}  // namespace dtrain::test::fake_gpu
