# How every library of this project is declared.
#
#   k25_add_module(NAME kernels_gemm
#     HEADERS gemm.h            public headers, each self-contained (checked)
#     SOURCES gemm.cpp          compiled once, for the baseline instruction set
#     ISA_SOURCES gemm_cpu.cpp  compiled once per CPU instruction set, see kernels/core/isa.h
#     CUDA gemm_cuda.cu         compiled when K25_WITH_CUDA is on: .cu, or .cpp that calls CUDA libraries
#     CPU_ONLY gemm_none.cpp    compiled when it is off
#     DEPS k25::kernels_core    public dependencies
#     PRIVATE_DEPS Eigen3::Eigen)
#
# INSTALL (a flag) exports the module: the kernel library does, the trainer does not.

set(K25_CPU_ISAS isa_v1 isa_v3 isa_v4)
set(K25_ISA_FLAGS_isa_v1 -march=x86-64)
set(K25_ISA_FLAGS_isa_v3 -march=x86-64-v3)
set(K25_ISA_FLAGS_isa_v4 -march=x86-64-v4 -mprefer-vector-width=512)

# -O3 in every configuration: without inlining, ISA objects would hold weak copies of std functions
# (kernels/core/isa.h). errno of sqrt is never read and no trap is set; both flags leave values alone
# and let loops with square roots and selects vectorise.
set(K25_ISA_OPTIMIZE -O3 -fno-math-errno -fno-trapping-math)

set(K25_WARNINGS -Wall -Wextra -Wshadow -Wnon-virtual-dtor
    -Wno-missing-field-initializers)  # designated initialisers leave defaults on purpose
if(K25_WERROR)
  list(APPEND K25_WARNINGS -Werror)
endif()

# The flags that decide bits: no contraction anywhere, so that CPU code paths agree.
function(k25_compile_options target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:${K25_WARNINGS};-ffp-contract=off>
    # Source locations in messages: kernels/gemm/gemm.cpp:12, wherever the tree was built.
    $<$<COMPILE_LANGUAGE:CXX>:-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=>)
endfunction()

function(k25_add_module)
  cmake_parse_arguments(A "INSTALL" "NAME"
    "HEADERS;SOURCES;ISA_SOURCES;CUDA;CPU_ONLY;DEPS;PRIVATE_DEPS" ${ARGN})
  if(A_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "k25_add_module: stray ${A_UNPARSED_ARGUMENTS}")
  endif()
  set(lib k25_${A_NAME})
  add_library(${lib} STATIC ${A_SOURCES})
  add_library(k25::${A_NAME} ALIAS ${lib})
  k25_compile_options(${lib})
  set_target_properties(${lib} PROPERTIES
    EXPORT_NAME ${A_NAME} POSITION_INDEPENDENT_CODE ON CXX_EXTENSIONS OFF
    VERIFY_INTERFACE_HEADER_SETS ON)
  target_sources(${lib} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${A_HEADERS})
  target_link_libraries(${lib} PUBLIC ${A_DEPS})
  foreach(dep IN LISTS A_PRIVATE_DEPS)
    if(A_INSTALL)  # headers only (Eigen): whoever links the installed library does not need it
      set(dep $<BUILD_INTERFACE:${dep}>)
    endif()
    target_link_libraries(${lib} PRIVATE ${dep})
  endforeach()
  target_compile_definitions(${lib} PUBLIC K25_WITH_CUDA=$<BOOL:${K25_WITH_CUDA}>)

  foreach(isa IN LISTS K25_CPU_ISAS)
    if(A_ISA_SOURCES)
      set(object ${lib}_${isa})
      add_library(${object} OBJECT ${A_ISA_SOURCES})
      k25_compile_options(${object})
      set_target_properties(${object} PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_EXTENSIONS OFF)
      target_include_directories(${object} PRIVATE ${PROJECT_SOURCE_DIR})
      target_compile_definitions(${object} PRIVATE
        K25_WITH_CUDA=$<BOOL:${K25_WITH_CUDA}> K25_ISA=${isa} Eigen=Eigen_${isa} K25_IS_${isa}=1)
      target_compile_options(${object} PRIVATE ${K25_ISA_OPTIMIZE} ${K25_ISA_FLAGS_${isa}})
      if(NOT isa STREQUAL isa_v1)
        set_property(GLOBAL APPEND PROPERTY K25_ISA_OBJECTS ${object})  # isa_symbols_test
      endif()
      foreach(dep IN LISTS A_PRIVATE_DEPS)
        target_include_directories(${object} SYSTEM PRIVATE
          $<TARGET_PROPERTY:${dep},INTERFACE_INCLUDE_DIRECTORIES>)
      endforeach()
      target_sources(${lib} PRIVATE $<TARGET_OBJECTS:${object}>)
    endif()
  endforeach()

  if(NOT K25_WITH_CUDA)
    target_sources(${lib} PRIVATE ${A_CPU_ONLY})
  elseif(A_CUDA)
    target_sources(${lib} PRIVATE ${A_CUDA})
    # No contraction: update_math.h promises the bits of the CPU. Kernels write fma where they want it.
    target_compile_options(${lib} PRIVATE
      $<$<COMPILE_LANGUAGE:CUDA>:-fmad=false;--expt-relaxed-constexpr;-Xcompiler=-ffp-contract=off>)
    set_target_properties(${lib} PROPERTIES
      CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON CUDA_EXTENSIONS OFF)
  endif()
  if(K25_WITH_CUDA)
    target_link_libraries(${lib} PUBLIC CUDA::cudart)
  endif()
  if(A_INSTALL)
    install(TARGETS ${lib} EXPORT k25_targets
            ARCHIVE COMPONENT kernels
            FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/k25 COMPONENT kernels)
    set_property(GLOBAL APPEND PROPERTY K25_KERNEL_MODULES k25::${A_NAME})
  endif()
endfunction()
