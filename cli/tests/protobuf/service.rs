//! A service of protobuf messages.

use farcall::{Stream, Streaming, stream};

use food::Count as Meals;
use zoo::animal::Place;
use zoo::{Animal, Count, Hidden, Kind, Refusal};

/// As prost-build makes it of zoo.proto.
pub(crate) mod zoo {
    use std::collections::HashMap;

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Animal {
        #[prost(string, tag = "1")]
        pub(crate) name: String,
        #[prost(enumeration = "Kind", tag = "2")]
        pub(crate) kind: i32,
        #[prost(message, repeated, tag = "3")]
        pub(crate) young: Vec<Self>,
        #[prost(map = "string, uint64", tag = "4")]
        pub(crate) weights: HashMap<String, u64>,
        #[prost(oneof = "animal::Home", tags = "5, 6")]
        pub(crate) home: Option<animal::Home>,
        #[prost(bytes = "vec", tag = "7")]
        pub(crate) picture: Vec<u8>,
        #[prost(message, optional, tag = "8")]
        pub(crate) born: Option<prost_types::Timestamp>,
        #[prost(int32, optional, tag = "9")]
        pub(crate) age: Option<i32>,
        #[prost(sint32, repeated, tag = "10")]
        pub(crate) marks: Vec<i32>,
        #[prost(message, optional, tag = "11")]
        pub(crate) diet: Option<super::food::Diet>,
    }

    pub(crate) mod animal {
        #[derive(Clone, PartialEq, prost::Message)]
        pub(crate) struct Place {
            #[prost(double, tag = "1")]
            pub(crate) x: f64,
            #[prost(double, tag = "2")]
            pub(crate) y: f64,
        }

        #[derive(Clone, PartialEq, prost::Oneof)]
        pub(crate) enum Home {
            #[prost(string, tag = "5")]
            Cage(String),
            #[prost(message, tag = "6")]
            Place(Place),
        }
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
    pub(crate) enum Kind {
        Unknown = 0,
        Cat = 1,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Count {
        #[prost(int64, tag = "1")]
        pub(crate) animals: i64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Refusal {
        #[prost(string, tag = "1")]
        pub(crate) why: String,
    }

    /// A message that is in no .proto file.
    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Hidden {}
}

/// As prost-build makes it of zoo/food.proto.
pub(crate) mod food {
    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Diet {
        #[prost(enumeration = "diet::Kind", required, tag = "1")]
        pub(crate) kind: i32,
        #[prost(string, optional, tag = "2", default = "mice")]
        pub(crate) of: Option<String>,
    }

    pub(crate) mod diet {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
        pub(crate) enum Kind {
            Meat = 1,
            Plants = 2,
        }
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Count {
        #[prost(int32, required, tag = "1")]
        pub(crate) meals: i32,
    }
}

impl From<farcall::Status> for Refusal {
    fn from(status: farcall::Status) -> Self {
        Self { why: status.to_string() }
    }
}

#[farcall::service(package = "zoo.v1", codec = farcall::Prost)]
pub(crate) trait Zoo {
    async fn echo(&self, animal: Animal) -> farcall::Result<Animal>;
    async fn whose(&self, animal: Animal) -> farcall::Result<Animal>;
    async fn refuse(&self, animal: Animal) -> Result<(), Refusal>;
    async fn young(&self, of: Animal) -> Result<impl Stream<Item = Result<Animal, Refusal>>, Refusal>;
    async fn count(&self, from: Count, animals: Streaming<Animal>) -> farcall::Result<Count>;
    fn names(&self, places: Streaming<Place>) -> impl Stream<Item = farcall::Result<String>>;
    async fn now(&self) -> farcall::Result<prost_types::Timestamp>;
    async fn rest(&self) -> farcall::Result<()>;
    async fn hidden(&self) -> farcall::Result<Hidden>;
    async fn meals(&self) -> farcall::Result<Meals>;
}

/// Animals of the zoo of this name.
pub(crate) struct Animals(pub(crate) &'static str);

impl Zoo for Animals {
    async fn echo(&self, animal: Animal) -> farcall::Result<Animal> {
        Ok(animal)
    }

    async fn whose(&self, _: Animal) -> farcall::Result<Animal> {
        Ok(Animal { name: self.0.to_owned(), ..Default::default() })
    }

    async fn refuse(&self, animal: Animal) -> Result<(), Refusal> {
        Err(Refusal { why: format!("no {}", animal.name) })
    }

    async fn young(&self, of: Animal) -> Result<impl Stream<Item = Result<Animal, Refusal>>, Refusal> {
        let allowed = |animal: Animal| match animal.kind() {
            Kind::Cat => Err(Refusal { why: "no cats".to_owned() }),
            Kind::Unknown => Ok(animal),
        };
        Ok(stream::iter(of.young.into_iter().map(allowed)))
    }

    async fn count(&self, from: Count, mut animals: Streaming<Animal>) -> farcall::Result<Count> {
        let mut count = from;
        while animals.message().await?.is_some() {
            count.animals += 1;
        }
        Ok(count)
    }

    fn names(&self, mut places: Streaming<Place>) -> impl Stream<Item = farcall::Result<String>> {
        stream::generate(async move |names| {
            while let Some(place) = places.message().await? {
                names.send(format!("{}, {}", place.x, place.y)).await;
            }
            Ok(())
        })
    }

    async fn now(&self) -> farcall::Result<prost_types::Timestamp> {
        Ok(prost_types::Timestamp { seconds: 1, nanos: 0 })
    }

    async fn rest(&self) -> farcall::Result<()> {
        Ok(())
    }

    async fn hidden(&self) -> farcall::Result<Hidden> {
        Ok(Hidden {})
    }

    async fn meals(&self) -> farcall::Result<Meals> {
        Ok(Meals { meals: 3 })
    }
}
