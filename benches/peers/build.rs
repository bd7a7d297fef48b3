//! The gRPC service, as code: its messages stand in `src/tonic.rs`, so that nobody needs `protoc`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "frameworks")]
    {
        use tonic_build::manual::{Builder, Method, Service};
        let echo = Method::builder()
            .name("echo")
            .route_name("Echo")
            .input_type("crate::tonic::Payload")
            .output_type("crate::tonic::Payload")
            .codec_path("tonic_prost::ProstCodec")
            .build();
        let service = Service::builder().name("Echo").package("peers").method(echo).build();
        Builder::new().compile(&[service]);
    }
}
