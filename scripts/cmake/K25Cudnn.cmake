# k25_cudnn, where cuDNN 9 is installed: it has no CMake package of its own. Needs CUDAToolkit.
find_path(K25_CUDNN_INCLUDE cudnn_graph.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
find_library(K25_CUDNN_LIBRARY cudnn HINTS ${CUDAToolkit_LIBRARY_DIR})
if(K25_CUDNN_INCLUDE AND K25_CUDNN_LIBRARY AND NOT TARGET k25_cudnn)
  add_library(k25_cudnn INTERFACE IMPORTED GLOBAL)
  set_target_properties(k25_cudnn PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${K25_CUDNN_INCLUDE}"
    INTERFACE_LINK_LIBRARIES "${K25_CUDNN_LIBRARY}")
endif()
