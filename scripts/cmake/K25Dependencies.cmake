# Libraries outside the kernel library; scripts/setup.sh installs them all.
set(MPI_CXX_SKIP_MPICXX ON)  # the C interface; the C++ one is gone from the standard
find_package(MPI REQUIRED COMPONENTS CXX)
enable_language(C)  # FindHDF5 compiles a C probe
find_package(HDF5 REQUIRED COMPONENTS C)
find_package(yaml-cpp REQUIRED)
find_package(fmt REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
find_package(PkgConfig REQUIRED)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(HWLOC REQUIRED IMPORTED_TARGET hwloc>=2.1)
pkg_check_modules(LIBURING IMPORTED_TARGET liburing>=2.2)  # without it: pread and pwrite on threads
find_library(K25_SENTENCEPIECE sentencepiece REQUIRED)
find_library(K25_SENTENCEPIECE_TRAIN sentencepiece_train REQUIRED)
if(NOT TARGET yaml-cpp::yaml-cpp)  # yaml-cpp 0.7 exports the plain name
  add_library(yaml-cpp::yaml-cpp ALIAS yaml-cpp)
endif()
if(K25_WITH_CUDA)
  find_path(K25_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} REQUIRED)
  find_library(K25_NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR} REQUIRED)
  add_library(k25_nccl INTERFACE IMPORTED)
  set_target_properties(k25_nccl PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${K25_NCCL_INCLUDE}"
    INTERFACE_LINK_LIBRARIES "${K25_NCCL_LIBRARY}")
endif()
