"""The eight schemas that only the held-out questions see."""

from __future__ import annotations

from tunesmith.demo.tables import Domain, amount, category, label, link, measure, table, year

HELDOUT_DOMAINS: tuple[Domain, ...] = (
    Domain(
        "mountaineering",
        (
            table(
                "mountain",
                name=label(
                    "Grey Horn, Mount Aster, Cold Peak, Mount Birch, Twin Needle, Eagle Top, "
                    "Mount Harrow, Silver Dome, Wolf Ridge, Lone Tower"
                ),
                region=category("Alps, Andes, Caucasus"),
                height=measure(2900, 6900),
            ),
            table(
                "climber",
                name=label(
                    "Anna Frey, Tom Hale, Pia Lund, Luis Mora, Kenji Abe, Sofia Marin, Olaf "
                    "Berg, Nina Petrov, Raul Diaz, Emma Holt, Yuki Sato, Marc Girard"
                ),
                country=category("Spain, Japan, Norway, Chile"),
                age=measure(19, 58),
                mountain_id=link("mountain"),
            ),
        ),
    ),
    Domain(
        "bakeries",
        (
            table(
                "baker",
                name=label(
                    "Greta Baum, Paul Ferri, Lena Voss, Omar Haddad, Julie Roche, Ivan Novak, "
                    "Maya Singh, Peter Lang, Rosa Conti"
                ),
                town=category("Bath, Ghent, Siena"),
                salary=amount(1800, 4200),
            ),
            table(
                "cake",
                name=label(
                    "Sunday Slice, Forest Layer, Berry Crown, Snow Roll, Harvest Loaf, Cloud "
                    "Tart, Honey Ring, Midnight Square, Garden Bun, Golden Pie, Winter Log"
                ),
                flavor=category("lemon, chocolate, vanilla, almond"),
                price=amount(4, 60),
                weight=measure(200, 2400),
                baker_id=link("baker"),
            ),
        ),
    ),
    Domain(
        "spaceflight",
        (
            table(
                "agency",
                name=label(
                    "Orbit One, Star Bureau, North Space, Sky Institute, Deep Reach, Lunar "
                    "Works, Polar Launch, Comet Group"
                ),
                continent=category("Europe, Asia, America"),
                budget=amount(120, 990),
            ),
            table(
                "mission",
                name=label(
                    "Pathway, Lantern, Odyssey, Beacon, Pilgrim, Horizon, Falcon Eye, Meridian, "
                    "Tempest, Anchor"
                ),
                destination=category("Moon, Mars, Venus"),
                launch_year=year(1985, 2022),
                cost=amount(15, 480),
                agency_id=link("agency"),
            ),
            table(
                "astronaut",
                name=label(
                    "Ida Kern, Leo Marsh, Tara Quinn, Viktor Orlov, Chen Wei, Sara Bloom, Noah "
                    "Reed, Aiko Mori, Pedro Silva, Hana Kim, Adam West"
                ),
                role=category("pilot, engineer, scientist"),
                age=measure(28, 59),
                mission_id=link("mission"),
            ),
        ),
    ),
    Domain(
        "theaters",
        (
            table(
                "theater",
                name=label(
                    "Old Globe, River Stage, Grand Hall, Lyric House, Corner Playhouse, Royal "
                    "Court, Bridge Theater, Garden Stage, Arcadia"
                ),
                district=category("North, Center, Harbor"),
                capacity=amount(90, 1400),
                opening_year=year(1890, 2015),
            ),
            table(
                "play",
                title=label(
                    "The Long Night, Paper Moon, Two Sisters, A Quiet House, The Visitor, "
                    "Ashes, Summer Rain, The Last Letter, Glass Walls, King of Salt, Echoes, "
                    "The Well"
                ),
                language=category("English, French, German"),
                duration=measure(55, 210),
                theater_id=link("theater"),
            ),
        ),
    ),
    Domain(
        "wines",
        (
            table(
                "winery",
                name=label(
                    "Casa Verde, Hill Estate, Domaine Petit, Stone Cellar, Villa Rossa, Oak "
                    "Valley, Sun Terrace, Monte Alto"
                ),
                country=category("Italy, France, Chile"),
                area=amount(12, 340),
            ),
            table(
                "wine",
                name=label(
                    "Red Lark, White Heron, Amber Hill, Dry Creek, Black Swan, Old Barrel, Rose "
                    "Garden, Night Harvest, First Frost, Blue Cork, Wild Vine, Slow River"
                ),
                grape=category("Merlot, Riesling, Syrah, Malbec"),
                price=amount(7, 95),
                rating=measure(5.1, 9.9),
                winery_id=link("winery"),
            ),
        ),
    ),
    Domain(
        "deliveries",
        (
            table(
                "courier",
                name=label(
                    "Abel Cruz, Bella Knox, Carl Dunn, Dora Weiss, Eli Stern, Fay Moreau, Gus "
                    "Hahn, Hedy Lamm, Igor Zorin"
                ),
                vehicle=category("bike, van, scooter"),
                age=measure(18, 61),
            ),
            table(
                "parcel",
                code=label(
                    "PX10, PX14, PX21, PX27, PX33, PX38, PX42, PX49, PX56, PX63, PX70, PX75, PX81"
                ),
                city=category("Oslo, Lyon, Porto, Graz"),
                weight=amount(1, 45),
                fee=amount(3, 70),
                courier_id=link("courier"),
            ),
        ),
    ),
    Domain(
        "software",
        (
            table(
                "developer",
                name=label(
                    "Alan Pike, Bea Torres, Cleo Marks, Dev Patel, Elsa Winter, Fritz Kohl, "
                    "Gwen Ashby, Hari Menon, Ines Faria, Jack Boyd"
                ),
                specialty=category("security, graphics, databases"),
                salary=amount(2900, 9800),
            ),
            table(
                "app",
                name=label(
                    "Notely, Fitloop, Cartio, Skyfeed, Mapster, Tunebox, Papertrail, Quizzle, "
                    "Moodly, Budgetwise, Plantie"
                ),
                platform=category("mobile, web, desktop"),
                rating=measure(2.1, 5.0),
                release_year=year(2006, 2024),
                developer_id=link("developer"),
            ),
        ),
    ),
    Domain(
        "lighthouses",
        (
            table(
                "coast",
                name=label(
                    "Amber Coast, Bear Bay, Cape Lorne, Dune Shore, East Reach, Fog Bank, Gull "
                    "Point, High Cliffs"
                ),
                sea=category("North Sea, Baltic, Atlantic"),
                length=amount(18, 420),
            ),
            table(
                "lighthouse",
                name=label(
                    "Old Keeper, White Lady, Sentinel, Red Finger, Storm Light, Pilot Rock, Far "
                    "Lamp, Saint Elmo, Gannet, Twin Lights"
                ),
                material=category("stone, brick, iron"),
                height=measure(9, 75),
                construction_year=year(1790, 1960),
                coast_id=link("coast"),
            ),
            table(
                "boat",
                name=label(
                    "Sea Otter, Kittiwake, Marlin, Blue Tern, Northern Star, Pearl, Dolphin, "
                    "Mermaid, Petrel"
                ),
                color=category("blue, white, orange"),
                speed=measure(8, 42),
                coast_id=link("coast"),
            ),
        ),
    ),
)
