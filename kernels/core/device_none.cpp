#include "kernels/core/device.h"

namespace k25 {

int cuda_device_count() { return 0; }

// None can be made; owners of a null one need the symbols.
CudaDevice::~CudaDevice() = default;
CudaStream::~CudaStream() = default;

}  // namespace k25
