# How tests are registered. Labels: unit, mpi, system, gpu, slow (docs/architecture.md).
find_package(GTest REQUIRED)
find_package(Python3 REQUIRED COMPONENTS Interpreter)
include(GoogleTest)

set(K25_MPI_ENVIRONMENT
    "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;OMPI_MCA_rmaps_base_oversubscribe=1;OMPI_MCA_hwloc_base_binding_policy=none")

# A_TIMEOUT, in seconds: what a caller gave, else `default`; a sanitizer takes its time.
macro(k25_test_timeout default)
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT ${default})
  endif()
  if(K25_SANITIZER)
    math(EXPR A_TIMEOUT "${A_TIMEOUT} * 4")
  endif()
endmacro()

# k25_add_test(NAME kernels/gemm/gemm_test DEPS k25::kernels_gemm [LABEL unit] [TIMEOUT 120])
# compiles NAME.cpp (relative to tests/) into one executable; each TEST becomes a ctest.
function(k25_add_test)
  cmake_parse_arguments(A "" "NAME;LABEL;TIMEOUT" "DEPS;SOURCES" ${ARGN})
  if(NOT A_LABEL)
    set(A_LABEL unit)
  endif()
  k25_test_timeout(120)
  string(REPLACE "/" "_" target ${A_NAME})
  add_executable(${target} ${PROJECT_SOURCE_DIR}/tests/${A_NAME}.cpp ${A_SOURCES})
  k25_compile_options(${target})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${target} PRIVATE ${A_DEPS} GTest::gtest GTest::gtest_main)
  gtest_discover_tests(${target} TEST_PREFIX ${A_NAME}. DISCOVERY_TIMEOUT 60
    PROPERTIES LABELS ${A_LABEL} TIMEOUT ${A_TIMEOUT})
endfunction()

# k25_add_mpi_test(NAME parallel/comm/comm_mpi_test NP 1 2 4 DEPS k25::parallel [LABEL mpi])
# one executable, one ctest per rank count; it supplies its own main (tests/mpi_main.cpp).
function(k25_add_mpi_test)
  cmake_parse_arguments(A "" "NAME;LABEL;TIMEOUT" "NP;DEPS;ARGS" ${ARGN})
  if(NOT A_LABEL)
    set(A_LABEL mpi)
  endif()
  k25_test_timeout(120)
  string(REPLACE "/" "_" target ${A_NAME})
  if(NOT TARGET ${target})
    add_executable(${target} ${PROJECT_SOURCE_DIR}/tests/${A_NAME}.cpp
                             ${PROJECT_SOURCE_DIR}/tests/mpi_main.cpp)
    k25_compile_options(${target})
    target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
    target_link_libraries(${target} PRIVATE ${A_DEPS} GTest::gtest MPI::MPI_CXX)
  endif()
  foreach(np IN LISTS A_NP)
    add_test(NAME ${A_NAME}.np${np}
             COMMAND ${MPIEXEC_EXECUTABLE} -q ${MPIEXEC_NUMPROC_FLAG} ${np} $<TARGET_FILE:${target}> ${A_ARGS})
    set_tests_properties(${A_NAME}.np${np} PROPERTIES
      LABELS ${A_LABEL} PROCESSORS 2 TIMEOUT ${A_TIMEOUT} ENVIRONMENT "${K25_MPI_ENVIRONMENT}")
  endforeach()
endfunction()

# k25_add_system_tests(FILE system/resume_test.py [LABEL system] [TIMEOUT 300] [PROCESSORS 2])
# registers each 'def test_...' of a Python unittest file. K25_BIN names the built k25 program, where
# there is one. A test that unittest skips, or that exits with 77, counts as skipped. Those labelled gpu run one after the
# other, also under ctest --parallel: they look at the memory that is in use.
function(k25_add_system_tests)
  cmake_parse_arguments(A "" "FILE;LABEL;TIMEOUT;PROCESSORS" "" ${ARGN})
  if(NOT A_LABEL)
    set(A_LABEL system)
  endif()
  if(NOT A_PROCESSORS)
    set(A_PROCESSORS 2)
  endif()
  k25_test_timeout(300)
  set(path ${PROJECT_SOURCE_DIR}/tests/${A_FILE})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
  file(STRINGS ${path} lines REGEX "^class [A-Za-z0-9_]+|^ +def test_[A-Za-z0-9_]+")
  set(environment "${K25_MPI_ENVIRONMENT};PYTHONDONTWRITEBYTECODE=1")
  if(TARGET k25)
    list(APPEND environment "K25_BIN=$<TARGET_FILE:k25>")
  endif()
  set(class "")
  foreach(line IN LISTS lines)
    if(line MATCHES "^class ([A-Za-z0-9_]+)")
      set(class ${CMAKE_MATCH_1})
    elseif(line MATCHES "def (test_[A-Za-z0-9_]+)")
      set(case ${CMAKE_MATCH_1})
      string(REGEX REPLACE "\\.py$" "" stem ${A_FILE})
      add_test(NAME ${stem}.${class}.${case}
               COMMAND ${Python3_EXECUTABLE} ${path} ${class}.${case})
      set_tests_properties(${stem}.${class}.${case} PROPERTIES
        LABELS ${A_LABEL} PROCESSORS ${A_PROCESSORS} TIMEOUT ${A_TIMEOUT} SKIP_RETURN_CODE 77
        SKIP_REGULAR_EXPRESSION "OK .skipped=" ENVIRONMENT "${environment}")
      if(A_LABEL STREQUAL gpu)
        set_tests_properties(${stem}.${class}.${case} PROPERTIES RESOURCE_LOCK gpu)
      endif()
    endif()
  endforeach()
endfunction()
